// SPDX-License-Identifier: Apache-2.0

package kubestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

const reservations = "overlappingrangeipreservations"

// Reservations returns whereabouts' reservations.
func (s *Store) Reservations(ctx context.Context) (map[string]string, error) {
	all, err := s.reservations(ctx)
	out := make(map[string]string, len(all))
	for _, r := range all {
		out[r.Metadata.Name] = r.Spec.PodRef
	}
	return out, err
}

func (s *Store) reservations(ctx context.Context) ([]pool.Reservation, error) {
	all, err := list[pool.Reservation](ctx, s, s.path(reservations, ""))
	if apierrors.IsNotFound(err) { // a cluster that has pools only
		return nil, nil
	}
	return all, err
}

// Reserve makes a reservation as whereabouts does.
func (s *Store) Reserve(ctx context.Context, name, podRef, ifName string) error {
	err := s.create(ctx, reservations, pool.NewReservation(s.namespace, name, podRef, ifName))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	var there pool.Reservation
	if err := s.read(ctx, s.path(reservations, name), &there); err != nil {
		return err
	}
	if there.Spec.PodRef != podRef {
		return fmt.Errorf("%w: the reservation %s is for pod %s", claims.ErrConflict, name, there.Spec.PodRef)
	}
	return nil
}

// fewReservations is up to how many reservations are read one by one.
const fewReservations = 2

// Unreserve removes whereabouts' reservations of addresses, but for those that are another pod's by now.
func (s *Store) Unreserve(ctx context.Context, pods map[string]string) error {
	var there []pool.Reservation
	if len(pods) > fewReservations {
		var err error
		if there, err = s.reservations(ctx); err != nil {
			return err
		}
	} else {
		for name := range pods {
			var o pool.Reservation
			err := s.read(ctx, s.path(reservations, name), &o)
			if err == nil {
				there = append(there, o)
			} else if !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	var errs []error
	for i := range there {
		if podRef, ok := pods[there[i].Metadata.Name]; ok && podRef == there[i].Spec.PodRef {
			errs = append(errs, s.unreserve(ctx, there[i].Metadata))
		}
	}
	return errors.Join(errs...)
}

// unreserve removes a reservation that has not changed.
func (s *Store) unreserve(ctx context.Context, m pool.Meta) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions": map[string]string{"uid": m.UID, "resourceVersion": m.ResourceVersion},
	})
	if err != nil {
		return err
	}
	_, err = s.do(ctx, s.client.Delete().AbsPath(s.path(reservations, m.Name)).SetHeader("Content-Type", "application/json").Body(body))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
