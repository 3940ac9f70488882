// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strings"
)

const (
	tokenKey   = "token"
	cookieName = "sluice-ui"
)

// gate lets in who has the token.
//
// The token of the URL is exchanged for a cookie. Cookies know no ports: a browser sends them to each server of the host. So the cookie
// belongs to a path that only the exchange tells, and a page that another user serves on the node does not get it.
type gate struct {
	token, cookie string
	room          string // the path of all that the cookie opens, "/.../"
}

// newGate takes 128 random bits for each secret.
func newGate() gate {
	return gate{token: rand.Text(), cookie: rand.Text(), room: "/" + rand.Text() + "/"}
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// knows reports whether a request has the cookie. Another server of the host may have set one with its name.
func (g gate) knows(r *http.Request) bool {
	for _, c := range r.CookiesNamed(cookieName) {
		if same(c.Value, g.cookie) {
			return true
		}
	}
	return false
}

// enter exchanges the token for the cookie.
func (g gate) enter(w http.ResponseWriter, r *http.Request) {
	if !same(r.URL.Query().Get(tokenKey), g.token) {
		http.Error(w, "Open the address that \"sluice ui\" printed: it has a token.", http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: g.cookie, Path: g.room, HttpOnly: true, SameSite: http.SameSiteStrictMode}) // no TLS on the loopback
	http.Redirect(w, r, g.room, http.StatusSeeOther)
}

// rightHost refuses the names of others: a page of theirs whose name leads to the loopback (DNS rebinding) gets no answer. The port may be
// another one, that of a tunnel.
func rightHost(host string) bool {
	u, err := url.Parse("http://" + host)
	if err != nil || u.Host != host {
		return false
	}
	name := u.Hostname()
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}
