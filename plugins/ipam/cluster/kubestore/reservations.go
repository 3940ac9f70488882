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
	list, err := s.reservations(ctx)
	out := make(map[string]string, len(list))
	for _, r := range list {
		out[r.Metadata.Name] = r.Spec.PodRef
	}
	return out, err
}

func (s *Store) reservations(ctx context.Context) ([]pool.Reservation, error) {
	var list struct {
		Items []pool.Reservation `json:"items"`
	}
	err := s.read(ctx, s.path(reservations, ""), &list)
	if apierrors.IsNotFound(err) { // a cluster that has pools only
		return nil, nil
	}
	return list.Items, s.told(err)
}

// Reserve makes a reservation as whereabouts does.
func (s *Store) Reserve(ctx context.Context, name, podRef, ifName string) error {
	err := s.create(ctx, reservations, pool.NewReservation(s.namespace, name, podRef, ifName))
	if !apierrors.IsAlreadyExists(err) {
		return s.told(err)
	}
	var there pool.Reservation
	if err := s.read(ctx, s.path(reservations, name), &there); err != nil {
		return s.told(err)
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
	var list []pool.Reservation
	if len(pods) > fewReservations {
		var err error
		if list, err = s.reservations(ctx); err != nil {
			return err
		}
	} else {
		for name := range pods {
			var o pool.Reservation
			err := s.read(ctx, s.path(reservations, name), &o)
			if err == nil {
				list = append(list, o)
			} else if !apierrors.IsNotFound(err) {
				return s.told(err)
			}
		}
	}
	var errs []error
	for i := range list {
		if podRef, ok := pods[list[i].Metadata.Name]; ok && podRef == list[i].Spec.PodRef {
			errs = append(errs, s.unreserve(ctx, list[i].Metadata))
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
	return s.told(err)
}
