"""kubectl and custom resources: definitions, columns, explain, scale, admission policies."""

from __future__ import annotations

import json
import re

import yaml

from kubekit.api.durations import parse_time

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gadgets, kind: Gadget, shortNames: [gad]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    additionalPrinterColumns:
    - {name: Mode, type: string, jsonPath: .spec.mode}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas, priority: 1}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        description: A gadget.
        properties:
          spec:
            type: object
            description: What is wanted of the gadget.
            x-kubernetes-validations:
            - {rule: "self.replicas <= 5", message: at most five}
            properties:
              replicas: {type: integer, default: 1, minimum: 0, description: How many of them.}
              mode: {type: string, enum: [slow, fast], default: slow}
          status: {type: object, properties: {replicas: {type: integer}, phase: {type: string}}}
"""
POLICY = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-forbidden}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  variables: [{name: data, expression: "has(object.data) ? object.data : {}"}]
  validations:
  - {expression: "!('forbidden' in variables.data)", messageExpression: "'not as ' + request.userInfo.username"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-forbidden}
spec:
  policyName: no-forbidden
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}
"""


def gadget(name: str = "one", **spec: object) -> str:
    metadata = {"name": name}
    return yaml.safe_dump({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": metadata, "spec": spec})


def test_the_life_of_a_custom_resource(kubectl):
    kubectl("apply", "-f", "-", stdin=CRD)
    kubectl("wait", "--for=condition=Established", "crd/gadgets.example.com", "--timeout=10s")
    assert "created" in kubectl("apply", "-f", "-", stdin=gadget(replicas=2))
    assert kubectl("get", "gad").split()[:5] == ["NAME", "MODE", "AGE", "one", "slow"]
    assert "REPLICAS" in kubectl("get", "gadgets", "-o", "wide")
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=gadget(replicas=2))
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=gadget(replicas=3))
    assert "What is wanted of the gadget." in kubectl("explain", "gadget.spec")
    assert "How many of them." in kubectl("explain", "gadgets.spec.replicas")

    refused = kubectl.refused("apply", "-f", "-", stdin=gadget(replicas=-1, mode="quick"))
    assert "should be greater than or equal to 0" in refused
    assert 'spec.mode: Unsupported value: "quick": supported values: "slow", "fast"' in refused
    assert "at most five" in kubectl.refused("apply", "-f", "-", stdin=gadget(replicas=6))
    refused = kubectl.refused("apply", "-f", "-", stdin=gadget(replica=1))
    assert re.search(r'unknown field "(spec\.)?replica"', refused), refused

    kubectl("scale", "gadget", "one", "--replicas=4")
    path = f"/apis/example.com/v1/namespaces/{kubectl.namespace}/gadgets/one/status"
    whole = kubectl.json("get", "gadget", "one") | {"status": {"phase": "Up"}}
    kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(whole))
    found = kubectl.json("get", "gadget", "one")
    assert found["spec"] == {"replicas": 4, "mode": "slow"}
    assert found["metadata"]["generation"] == 3
    assert parse_time(found["metadata"]["creationTimestamp"])
    assert "Phase:  Up" in kubectl("describe", "gadget", "one")

    kubectl("delete", "crd", "gadgets.example.com")
    assert "example.com" not in kubectl("api-versions")


def test_an_admission_policy_holds(cluster, kubectl):
    """In the embedded cluster as soon as it is written; a real server learns of it from a watch."""
    kubectl("apply", "-f", "-", stdin=POLICY.replace("NAMESPACE", kubectl.namespace))
    tried = ("create", "configmap", "no", "--from-literal=forbidden=1", "--dry-run=server")
    for _ in range(1 if cluster.kind == "embedded" else 200):
        if kubectl.run(*tried).returncode != 0:
            break
    refused = kubectl.refused("create", "configmap", "no", "--from-literal=forbidden=1")
    if kubectl.minor >= 25:  # older ones leave the reason out
        assert "ValidatingAdmissionPolicy 'no-forbidden' with binding 'no-forbidden' denied request" in refused
        assert "not as kubernetes-admin" in refused
    kubectl("create", "configmap", "yes", "--from-literal=allowed=1")
    kubectl("delete", "-f", "-", stdin=POLICY.replace("NAMESPACE", kubectl.namespace))
    for _ in range(1 if cluster.kind == "embedded" else 200):
        if kubectl.run(*tried).returncode == 0:
            break
    kubectl("create", "configmap", "no", "--from-literal=forbidden=1")


def test_who_may_do_what(kubectl, cluster):
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert kubectl.run("auth", "can-i", "get", "secrets", kubeconfig=cluster.jane).stdout.strip() == "no"
    refused = kubectl.refused("get", "secrets", kubeconfig=cluster.jane)
    assert 'secrets is forbidden: User "jane" cannot list resource "secrets" in API group ""' in refused
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=secrets")
    kubectl("create", "rolebinding", "jane", "--role=reader", "--user=jane")
    kubectl("get", "secrets", kubeconfig=cluster.jane)
    assert "secrets" in kubectl("auth", "can-i", "--list", kubeconfig=cluster.jane)
    assert kubectl("auth", "can-i", "get", "secrets", "--as=jane").strip() == "yes"
    kubectl("create", "role", "patcher", "--verb=get,patch", "--resource=configmaps")
    kubectl("create", "rolebinding", "patcher", "--role=patcher", "--user=jane")
    new = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}'
    refused = kubectl.refused("apply", "--server-side", "-f", "-", stdin=new, kubeconfig=cluster.jane)
    assert 'User "jane" cannot create resource "configmaps"' in refused
    nobody = cluster.config_for("wrong", "nobody")
    assert "must be logged in" in kubectl.refused("get", "pods", kubeconfig=nobody)


def test_service_accounts_have_tokens(kubectl, cluster):
    kubectl.needs(28, "create token, auth whoami")
    assert "kubernetes-admin" in kubectl("auth", "whoami")
    kubectl("create", "serviceaccount", "robot")
    token = kubectl("create", "token", "robot").strip()
    robot = cluster.config_for(token, "robot")
    assert f"system:serviceaccount:{kubectl.namespace}:robot" in kubectl("auth", "whoami", kubeconfig=robot)
