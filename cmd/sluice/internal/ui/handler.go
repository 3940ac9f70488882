// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sluice-cni/sluice/pkg/connlimit"
)

//go:embed assets
var assets embed.FS

// policy lets the page load its own files and nothing else: no inline script or style, no other origin, no frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// handler checks what holds for all requests, then answers.
func (s *Server) handler() http.Handler {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // the folder is in the program
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", s.gate.enter)
	room := http.NewServeMux()
	room.Handle("/", http.FileServerFS(files))
	room.HandleFunc("/api/node", s.node)
	room.HandleFunc("/api/connections", s.connections)
	room.HandleFunc("/api/doctor", s.examined)
	mux.Handle(s.gate.room, http.StripPrefix(s.gate.room[:len(s.gate.room)-1], room))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		known := s.gate.knows(r)
		if known {
			connlimit.KnownHere(r.Context())
		} else {
			h.Set("Connection", "close") // who has no token yet keeps no place
		}
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "The page only shows: GET and HEAD.", http.StatusMethodNotAllowed)
		case !rightHost(r.Host):
			http.Error(w, "The name in the address must be 127.0.0.1, [::1] or localhost.", http.StatusForbidden)
		case len(r.URL.RawQuery) > maxQuery:
			http.Error(w, "The query is too long.", http.StatusRequestURITooLong)
		case r.URL.Path != "/" && !known:
			http.Error(w, "Open the address that \"sluice ui\" printed: it has a token.", http.StatusUnauthorized)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// node answers with the last look. The header says how often it makes sense to ask.
func (s *Server) node(w http.ResponseWriter, r *http.Request) {
	f := s.look.get(r.Context())
	w.Header().Set("Sluice-Interval", strconv.FormatInt(int64(s.every/time.Millisecond), 10))
	reply(w, f.json, f.err, http.StatusServiceUnavailable)
}

func (s *Server) connections(w http.ResponseWriter, r *http.Request) {
	f := s.look.get(r.Context())
	if f.err != nil {
		reply(w, nil, f.err, http.StatusServiceUnavailable)
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		reply(w, nil, err, http.StatusBadRequest)
		return
	}
	v, err := f.look.Connections(query)
	if err != nil {
		reply(w, nil, err, http.StatusBadRequest)
		return
	}
	text, err := json.Marshal(v)
	reply(w, text, err, http.StatusInternalServerError)
}

func (s *Server) examined(w http.ResponseWriter, r *http.Request) {
	f := s.doctor.get(r.Context())
	reply(w, f.json, f.err, http.StatusServiceUnavailable)
}

// problem is the answer instead of another one.
type problem struct {
	Error string `json:"error"`
}

// reply writes JSON: text, or what went wrong, with that status.
func reply(w http.ResponseWriter, text []byte, err error, status int) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if err != nil {
		text, err = json.Marshal(problem{err.Error()})
		if err != nil {
			return
		}
		w.WriteHeader(status)
	}
	_, _ = w.Write(text)
}
