// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"testing"

	"github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// Whatever a client asks for, the answer is an InvalidArgument, or a decision about any flow.
func FuzzRequest(f *testing.F) {
	for _, r := range []*observer.GetFlowsRequest{
		{}, {Number: 1 << 63, First: true}, {FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"l4.TCP.flags", "source.labels"}}},
		{Whitelist: []*flow.FlowFilter{{SourceLabel: []string{"k8s:a in (b)"}, NodeName: []string{"*/n[a-b]"}, TcpFlags: []*flow.TCPFlags{nil}}}, Blacklist: []*flow.FlowFilter{nil}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := &observer.GetFlowsRequest{}
		if proto.Unmarshal(b, in) != nil {
			return
		}
		r, err := newRequest(in)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v", err)
			}
			return
		}
		for _, fl := range []*flow.Flow{example(), {}} {
			_ = r.wants(fl)
			r.mask.apply(fl)
		}
	})
}
