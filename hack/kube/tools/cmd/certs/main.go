// SPDX-License-Identifier: Apache-2.0

// certs DIR HOST... writes what a cluster signs with, once, into DIR:
//
//	ca.crt, ca.key                          the cluster's own authority
//	apiserver.crt, apiserver.key            serving certificate for the HOSTs (names and addresses)
//	apiserver-kubelet.crt, apiserver-kubelet.key   by which the API server calls kubelets (logs, exec)
//	service-account.key, service-account.pub       for service account tokens
//	etcd-ca.crt, etcd.crt, etcd.key         etcd's own authority and its certificate, for clients and peers
//	etcd-client.crt, etcd-client.key        by which the API server calls etcd
//
// Etcd lets in whoever its authority has signed. It has one of its own, whose key is not kept, because
// the cluster's authority also signs for others: kubelets, and whoever gets a request approved.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: certs DIR HOST...")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "certs:", err)
		os.Exit(1)
	}
}

func write(dir string, hosts []string) error {
	ca, err := authority(dir, "ca")
	if err != nil {
		return err
	}
	serving := template("kube-apiserver", nil, x509.ExtKeyUsageServerAuth)
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			serving.IPAddresses = append(serving.IPAddresses, ip)
		} else {
			serving.DNSNames = append(serving.DNSNames, host)
		}
	}
	if _, err := sign(dir, "apiserver", serving, ca); err != nil {
		return err
	}
	// The group is what RBAC lets through the kubelets' webhook authorization.
	client := template("kube-apiserver-kubelet-client", []string{"system:masters"}, x509.ExtKeyUsageClientAuth)
	if _, err := sign(dir, "apiserver-kubelet", client, ca); err != nil {
		return err
	}
	if err := etcd(dir); err != nil {
		return err
	}
	return serviceAccount(dir)
}

func etcd(dir string) error {
	ca, err := authority(dir, "etcd-ca")
	if err != nil {
		return err
	}
	server := template("etcd", nil, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	if _, err := sign(dir, "etcd", server, ca); err != nil {
		return err
	}
	if _, err := sign(dir, "etcd-client", template("kube-apiserver", nil, x509.ExtKeyUsageClientAuth), ca); err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, "etcd-ca.key"))
}

func authority(dir, name string) (*pair, error) {
	cert := template("dradriver-"+name, nil)
	cert.IsCA, cert.BasicConstraintsValid = true, true
	cert.KeyUsage |= x509.KeyUsageCertSign
	return sign(dir, name, cert, nil)
}

func template(name string, groups []string, usages ...x509.ExtKeyUsage) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(5, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  usages,
	}
}

// sign makes a key and a certificate by ca, or by itself when ca is nil.
func sign(dir, name string, cert *x509.Certificate, ca *pair) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	own := &pair{cert: cert, key: key}
	if ca == nil {
		ca = own
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	if err := writePEM(filepath.Join(dir, name+".crt"), "CERTIFICATE", der, 0o644); err != nil {
		return nil, err
	}
	return own, writeKey(filepath.Join(dir, name+".key"), key)
}

func serviceAccount(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, "service-account.pub"), "PUBLIC KEY", public, 0o644); err != nil {
		return err
	}
	return writeKey(filepath.Join(dir, "service-account.key"), key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}
