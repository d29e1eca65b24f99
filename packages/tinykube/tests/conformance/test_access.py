"""Permissions of users, and the text of a refusal."""

from __future__ import annotations

import pytest

RBAC = "rbac.authorization.k8s.io/v1"


def test_refusals(here):
    jane = here.ordinary
    here.see("list", jane.get(here.core("pods")))
    here.see("get", jane.get(here.core("pods/p")))
    here.see("create", jane.create(here.core("configmaps"), {"metadata": {"name": "c"}}))
    here.see("everywhere", jane.get("/api/v1/pods"))
    here.see("cluster", jane.get("/api/v1/nodes/n"))
    here.see("another group", jane.get(here.apps("deployments")))
    here.see("subresource", jane.get(here.core("pods/p/log")))
    here.see("scale", jane.patch(here.apps("deployments/d/scale"), {}))
    here.see("what is not served", jane.get("/apis/nosuch.example.com/v1/things"))
    here.see("a path", jane.get("/metrics"))
    here.see("discovery", jane.get("/api/v1").status)
    here.see("readiness", jane.get("/readyz").body)
    here.see("a wrong token", here.bearer("nonsense").get("/api"))


def test_impersonation(here, cluster):
    if cluster.kind == "foreign":
        pytest.skip("jane is there whom the administrator impersonates")
    here.see("another user", here.ordinary.get("/version", headers={"Impersonate-User": "other"}))


def test_roles(here):
    jane = here.ordinary
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"], "resourceNames": ["a"]}]
    here.see("role", here.create(here.at(RBAC, "roles"), {"metadata": {"name": "r"}, "rules": rules}))
    subjects = [{"kind": "User", "name": "jane"}]
    binding = {"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects}
    here.see("binding", here.create(here.at(RBAC, "rolebindings"), binding))
    here.made(here.core("configmaps"), {"metadata": {"name": "a"}})
    allowed = {
        "spec": {
            "resourceAttributes": {"namespace": here.namespace, "verb": "get", "resource": "configmaps", "name": "a"}
        }
    }
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for _ in range(200):  # a real server learns of roles from a watch
        if jane.create(reviews, allowed)["status"]["allowed"]:
            break
    here.see("the named one", jane.get(here.core("configmaps/a")).status)
    here.see("another", jane.get(here.core("configmaps/b")))
    here.see("listing one", jane.get(here.core("configmaps"), fieldSelector="metadata.name=a").status)
    here.see("listing all", jane.get(here.core("configmaps")))
    here.see("roleRef is fixed", here.patch(here.at(RBAC, "rolebindings/b"), {"roleRef": {"name": "other"}}))
    here.see("may she", jane.create(reviews, allowed))
    here.see(
        "may she not",
        jane.create(
            reviews,
            {"spec": {"resourceAttributes": {"namespace": here.namespace, "verb": "delete", "resource": "pods"}}},
        ),
    )
    about = {"spec": {"user": "jane", "resourceAttributes": allowed["spec"]["resourceAttributes"]}}
    here.see("ask about her", here.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", about))
    here.see(
        "ask in a namespace",
        here.create(
            here.at("authorization.k8s.io/v1", "localsubjectaccessreviews"),
            {"metadata": {"namespace": here.namespace}, **about},
        ),
    )
    here.see(
        "a path",
        here.create(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {"spec": {"user": "jane", "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}},
        ),
    )
    here.see("nothing asked", here.create(reviews, {"spec": {}}))
    rules = jane.create(
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": here.namespace}}
    )
    here.see("her rules", [rule for rule in rules["status"]["resourceRules"] if "configmaps" in rule["resources"]])


def test_no_more_than_one_has(here):
    """No user grants a right that the user lacks."""
    jane = here.ordinary
    may = [{"apiGroups": [RBAC.partition("/")[0]], "resources": ["roles", "rolebindings"], "verbs": ["create", "get"]}]
    here.made(here.at(RBAC, "roles"), {"metadata": {"name": "maker"}, "rules": may})
    subjects = [{"kind": "User", "name": "jane"}]
    here.made(
        here.at(RBAC, "rolebindings"),
        {"metadata": {"name": "maker"}, "roleRef": {"kind": "Role", "name": "maker"}, "subjects": subjects},
    )
    role = {
        "metadata": {"name": "more"},
        "rules": [{"apiGroups": [""], "resources": ["secrets", "pods"], "verbs": ["get", "list"]}],
    }
    for _ in range(200):
        answer = jane.create(here.at(RBAC, "roles"), role)
        if "cannot create resource" not in answer.body.get("message", ""):
            break
    here.see("a role", answer)
    binding = {
        "metadata": {"name": "more"},
        "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": subjects,
    }
    here.see("a binding", jane.create(here.at(RBAC, "rolebindings"), binding))


def test_tokens(here):
    accounts = here.core("serviceaccounts")
    here.made(accounts, {"metadata": {"name": "robot"}})
    ask = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = here.create(f"{accounts}/robot/token", ask)
    token = answer["status"].pop("token")
    here.see("request", {**answer.seen, "body": {**answer.body, "status": sorted(answer["status"])}})
    here.see("its parts", len(token.split(".")))
    here.see("too short", here.create(f"{accounts}/robot/token", {**ask, "spec": {"expirationSeconds": 60}}))
    here.see("no such account", here.create(f"{accounts}/nosuch/token", ask))
    bound = {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "nosuch"}}}
    here.see("bound to no pod", here.create(f"{accounts}/robot/token", bound))
    review = here.create("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})
    review["spec"].pop("token")
    kept = review["status"]["user"]
    kept["extra"] = sorted(kept.get("extra") or ())
    here.see("review", review)
    nonsense = here.create("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "nonsense"}})
    here.see("review of nonsense", sorted(nonsense["status"]))
    robot = here.bearer(token)
    mine = robot.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    here.see("it speaks for", mine["status"]["userInfo"]["username"])
    here.see("its groups", mine["status"]["userInfo"]["groups"])
    here.see("and may not", robot.get(here.core("pods")))


def test_the_issuer_of_tokens(here):
    """The documents by which others check tokens, and who may read them."""
    paths = ("/.well-known/openid-configuration", "/openid/v1/jwks")
    for path in paths:
        here.see(f"jane at {path}", here.ordinary.get(path))
        here.see(f"only JSON at {path}", here.get(path, headers={"Accept": "application/json"}).status)
        here.see(f"only YAML at {path}", here.get(path, headers={"Accept": "application/yaml"}).status)
    configuration, keys = (here.get(path, headers={"Accept": "*/*"}) for path in paths)
    here.see("configuration", sorted(configuration.body))
    here.see("issuer", configuration["issuer"])
    here.see("types", [configuration[name] for name in ("response_types_supported", "subject_types_supported")])
    used = [key["alg"] for key in keys["keys"]]
    here.see("algorithms are those of the keys", configuration["id_token_signing_alg_values_supported"] == used)
    here.see("for signatures", [key["use"] for key in keys["keys"]])
    accounts = here.core("serviceaccounts")
    here.made(accounts, {"metadata": {"name": "robot"}})
    token = here.create(f"{accounts}/robot/token", {})["status"]["token"]
    here.see("a service account", here.bearer(token).get(paths[0]).status)


def test_requests_for_tokens(here):
    accounts = here.core("serviceaccounts")
    here.made(accounts, {"metadata": {"name": "robot"}})
    here.made(here.core("secrets"), {"metadata": {"name": "s"}})
    here.made(here.core("pods"), here.pod("p", schedulerName="nobody"))
    for name, body in {
        "nothing": {},
        "another name": {"metadata": {"name": "other"}},
        "another namespace": {"metadata": {"namespace": "other"}},
        "another uid": {"metadata": {"uid": "other"}},
        "too long": {"spec": {"expirationSeconds": 2**32 + 1}},
        "for another server": {"spec": {"audiences": ["vault"]}},
        "bound to a secret": {"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s"}}},
        "bound to no secret": {"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "t"}}},
        "bound to a map": {"spec": {"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "s"}}},
        "bound to a pod of another": {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}},
        "another uid of a secret": {
            "spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s", "uid": "other"}}
        },
    }.items():
        answer = here.create(f"{accounts}/robot/token", body)
        if "status" in answer.body and isinstance(answer.body["status"], dict):
            answer.body["status"] = sorted(answer.body["status"])
        here.see(name, answer)


def test_what_pods_are_given(here):
    """The service account's token, mounted without being asked for; and how to refuse it."""
    pods = here.core("pods")
    made = here.made(pods, here.pod("p", schedulerName="nobody"))
    here.see("volumes", made["spec"]["volumes"])
    here.see("mounts", made["spec"]["containers"][0]["volumeMounts"])
    here.see("account", [made["spec"][k] for k in ("serviceAccount", "serviceAccountName")])
    here.see(
        "not wanted",
        sorted(here.made(pods, here.pod("q", schedulerName="nobody", automountServiceAccountToken=False))["spec"]),
    )
    here.made(
        here.core("serviceaccounts"),
        {"metadata": {"name": "closed"}, "automountServiceAccountToken": False, "imagePullSecrets": [{"name": "s"}]},
    )
    spec = here.made(pods, here.pod("r", schedulerName="nobody", serviceAccountName="closed"))["spec"]
    here.see("the account says no", [spec.get("volumes"), spec.get("imagePullSecrets")])
    own = [
        {
            "name": "main",
            "image": "i",
            "volumeMounts": [{"name": "v", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        }
    ]
    spec = here.made(
        pods, here.pod("s", schedulerName="nobody", containers=own, volumes=[{"name": "v", "emptyDir": {}}])
    )["spec"]
    here.see("a mount of one's own", [len(spec["volumes"]), spec["containers"][0]["volumeMounts"]])
    here.see("the authority", sorted(here.until(here.core("configmaps/kube-root-ca.crt"), lambda found: found)["data"]))


def test_the_right_to_read_is_none_to_run_commands(here):
    """Clients open WebSockets with GET."""
    for verb in ("get", "delete"):
        rules = [{"apiGroups": [""], "resources": ["pods/exec", "pods/attach", "pods/portforward"], "verbs": [verb]}]
        here.made(here.at(RBAC, "roles"), {"metadata": {"name": verb}, "rules": rules})
        binding = {"roleRef": {"kind": "Role", "name": verb}, "subjects": [{"kind": "User", "name": "jane"}]}
        here.made(here.at(RBAC, "rolebindings"), {"metadata": {"name": verb}, **binding})
    wanted = {"namespace": here.namespace, "verb": "delete", "resource": "pods", "subresource": "exec"}
    jane = here.ordinary
    for _ in range(200):  # a real server learns of roles from a watch
        reviewed = jane.create(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {"resourceAttributes": wanted}}
        )
        if reviewed["status"]["allowed"]:
            break
    for name in ("exec", "attach", "portforward"):
        here.see(f"{name} by GET", jane.get(here.core(f"pods/p/{name}"), command="id", ports="80"))
        here.see(f"{name} by DELETE", jane.delete(here.core(f"pods/p/{name}")))
        here.see(f"{name} by POST", jane.create(here.core(f"pods/p/{name}"), {}))
