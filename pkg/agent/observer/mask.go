// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"strings"

	"github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// mask has the fields that a client wants, by name, with masks of their own. An empty one wants all.
type mask map[protoreflect.Name]mask

// newMask reads paths such as "source.pod_name". An error is an InvalidArgument that names the path.
func newMask(paths []string) (mask, error) {
	out := mask{}
	for _, p := range paths {
		m, in := out, (&flow.Flow{}).ProtoReflect().Descriptor()
		for name := range strings.SplitSeq(p, ".") {
			if in == nil || in.Fields().ByName(protoreflect.Name(name)) == nil {
				return nil, status.Errorf(codes.InvalidArgument, "field_mask: %q: a flow has no such field", p)
			}
			fd := in.Fields().ByName(protoreflect.Name(name))
			if in = fd.Message(); fd.IsList() || fd.IsMap() {
				in = nil
			}
			if m[fd.Name()] == nil {
				m[fd.Name()] = mask{}
			}
			m = m[fd.Name()]
		}
	}
	return out, nil
}

func (m mask) apply(f *flow.Flow) { m.clear(f.ProtoReflect()) }

func (m mask) clear(in protoreflect.Message) {
	if len(m) == 0 {
		return
	}
	in.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		inner, wanted := m[fd.Name()]
		switch {
		case !wanted:
			in.Clear(fd)
		case fd.Message() != nil && !fd.IsList() && !fd.IsMap():
			inner.clear(v.Message())
		}
		return true
	})
}
