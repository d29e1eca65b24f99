"""Create, read, update, delete: what a client sees, and how refusals are worded."""

from __future__ import annotations

import pytest

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


def config_map(name="m", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_a_created_object_has_its_server_fields_and_reads_back_equal(api, pod):
    made = await api.create(PODS, pod())
    metadata = made["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert metadata["generation"] == 1
    assert metadata["uid"] and metadata["resourceVersion"]
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert await api.get(f"{PODS}/p") == made


async def test_what_is_not_there_is_told_as_kubernetes_tells_it(api):
    answer = await api("GET", f"{PODS}/x")
    assert answer.status == 404
    assert answer.json["reason"] == "NotFound"
    assert answer.message == 'pods "x" not found'
    assert answer.json["details"] == {"name": "x", "kind": "pods"}
    answer = await api("GET", "/apis/apps/v1/namespaces/default/deployments/x")
    assert answer.message == 'deployments.apps "x" not found'
    answer = await api("GET", "/apis/apps/v1/things")
    assert (answer.status, answer.message) == (404, "the server could not find the requested resource")
    answer = await api("GET", "/apis/no.such.group/v1/things")
    assert (answer.status, answer.data) == (404, b"404 page not found\n")


async def test_creating_twice_conflicts(api):
    await api.create(MAPS, config_map())
    answer = await api("POST", MAPS, config_map())
    assert (answer.status, answer.json["reason"]) == (409, "AlreadyExists")
    assert answer.message == 'configmaps "m" already exists'


async def test_an_object_that_was_read_is_not_created_again_by_accident(api):
    made = await api.create(MAPS, config_map())
    answer = await api(
        "POST", "/api/v1/namespaces/kube-system/configmaps", {"metadata": {**made["metadata"], "namespace": ""}}
    )
    assert (answer.status, answer.message) == (400, "resourceVersion should not be set on objects to be created")


async def test_generated_names_start_with_the_prefix_and_differ(api):
    body = {"metadata": {"generateName": "job-"}}
    names = {(await api.create(MAPS, body))["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


async def test_a_namespace_must_exist_and_must_not_be_going(api):
    answer = await api("POST", "/api/v1/namespaces/none/configmaps", config_map())
    assert (answer.status, answer.message) == (404, 'namespaces "none" not found')
    await api.create("/api/v1/namespaces", {"metadata": {"name": "going"}})
    going = await api("DELETE", "/api/v1/namespaces/going")
    assert going.json["status"]["phase"] == "Terminating"
    answer = await api("POST", "/api/v1/namespaces/going/configmaps", config_map())
    assert answer.status == 403
    assert answer.message == (
        'configmaps "m" is forbidden: unable to create new content in namespace going because it is being terminated'
    )
    assert answer.json["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    done = await api("PUT", "/api/v1/namespaces/going/finalize", {"metadata": {"name": "going"}, "spec": {}})
    assert done.status == 200
    assert (await api("GET", "/api/v1/namespaces/going")).status == 404


async def test_an_update_with_an_old_version_conflicts(api):
    made = await api.create(MAPS, config_map(a="1"))
    stale = {**made, "data": {"a": "2"}}
    fresh = await api("PUT", f"{MAPS}/m", stale)
    assert fresh.status == 200
    answer = await api("PUT", f"{MAPS}/m", stale)
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert answer.message == (
        'Operation cannot be fulfilled on configmaps "m": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    unconditional = await api("PUT", f"{MAPS}/m", config_map(a="3"))
    assert unconditional.json["data"] == {"a": "3"}
    assert unconditional.json["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_write_that_changes_nothing_is_no_write(api):
    made = await api.create(MAPS, config_map(a="1"))
    again = await api("PUT", f"{MAPS}/m", made)
    assert again.json["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    merged = await api.patch(f"{MAPS}/m", {"data": {"a": "1"}})
    assert merged.json["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_only_wanted_state_counts_as_a_generation(api):
    path = "/apis/apps/v1/namespaces/default/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    body = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}
    await api.create(path, body)
    labelled = await api.patch(f"{path}/d", {"metadata": {"labels": {"x": "y"}}})
    assert labelled.json["metadata"]["generation"] == 1
    scaled = await api.patch(f"{path}/d", {"spec": {"replicas": 3}})
    assert scaled.json["metadata"]["generation"] == 2
    status = await api.patch(f"{path}/d/status", {"status": {"replicas": 3}, "spec": {"replicas": 9}})
    assert status.json["metadata"]["generation"] == 2
    assert status.json["spec"]["replicas"] == 3
    assert status.json["status"] == {"replicas": 3}
    main = await api.patch(f"{path}/d", {"status": {"replicas": 7}})
    assert main.json["status"] == {"replicas": 3}


async def test_every_finding_of_a_bad_object_is_told(api):
    body = {
        "metadata": {"name": "Bad_Name", "labels": {"-x": "y"}},
        "spec": {"containers": [{"name": "C"}], "restartPolicy": "Sometimes"},
    }
    answer = await api("POST", PODS, body)
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    fields = {cause["field"] for cause in answer.json["details"]["causes"]}
    assert fields == {
        "metadata.name",
        "metadata.labels",
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.restartPolicy",
    }
    assert answer.message.startswith('Pod "Bad_Name" is invalid: [')
    assert 'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"' in (
        answer.message
    )


async def test_a_pods_spec_is_fixed_but_for_its_images(api, pod):
    await api.create(PODS, pod())
    image = await api.patch(f"{PODS}/p", {"spec": {"containers": [{"name": "c", "image": "new"}]}}, "strategic")
    assert image.json["spec"]["containers"][0]["image"] == "new"
    answer = await api.patch(f"{PODS}/p", {"spec": {"restartPolicy": "Never"}})
    assert answer.status == 422
    assert "Forbidden: pod updates may not change fields other than" in answer.message


async def test_unknown_fields_are_refused_warned_about_or_dropped(api):
    body = {**config_map(), "dat": {"a": "b"}}
    strict = await api("POST", MAPS, body, fieldValidation="Strict")
    decoding = 'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dat"'
    assert (strict.status, strict.message) == (400, decoding)
    warned = await api("POST", MAPS, body)
    assert warned.status == 201
    assert warned.headers["warning"] == '299 - "unknown field \\"dat\\""'
    assert "dat" not in warned.json
    ignored = await api("POST", MAPS, {**body, "metadata": {"name": "n"}}, fieldValidation="Ignore")
    assert "warning" not in ignored.headers
    assert "dat" not in ignored.json


async def test_a_wrong_type_is_a_bad_request_that_names_the_field(api, pod):
    answer = await api("POST", PODS, pod(terminationGracePeriodSeconds="soon"))
    assert answer.status == 400
    assert "cannot unmarshal string into Go struct field PodSpec.spec.terminationGracePeriodSeconds" in answer.message


async def test_dry_run_answers_and_stores_nothing(api):
    answer = await api("POST", MAPS, config_map(), dryRun="All")
    assert answer.status == 201 and answer.json["metadata"]["uid"]
    assert (await api("GET", f"{MAPS}/m")).status == 404
    await api.create(MAPS, config_map(a="1"))
    dry = await api.patch(f"{MAPS}/m", {"data": {"a": "2"}}, dryRun="All")
    assert dry.json["data"] == {"a": "2"}
    assert (await api("DELETE", f"{MAPS}/m", dryRun="All")).status == 200
    assert (await api.get(f"{MAPS}/m"))["data"] == {"a": "1"}


async def test_bodies_may_be_yaml_and_answers_too(api):
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: why\ndata:\n  when: 2026-01-01T00:00:00Z\n"
    answer = await api("POST", MAPS, text, headers={"content-type": "application/yaml", "accept": "application/yaml"})
    assert answer.status == 201
    assert "when: '2026-01-01T00:00:00Z'" in answer.data.decode()
    broken = await api("POST", MAPS, b"{", headers={"content-type": "application/json"})
    assert (broken.status, broken.json["reason"]) == (400, "BadRequest")
    odd = await api("POST", MAPS, b"x", headers={"content-type": "text/plain"})
    assert (odd.status, odd.json["reason"]) == (415, "UnsupportedMediaType")
    binary = await api("GET", MAPS, headers={"accept": "application/vnd.kubernetes.protobuf"})
    assert binary.status == 406


async def test_the_body_must_be_what_the_path_says(api, pod):
    assert (await api("POST", MAPS, pod())).status == 400
    other = {**config_map(), "metadata": {"name": "m", "namespace": "kube-system"}}
    answer = await api("POST", MAPS, other)
    assert answer.message == "the namespace of the provided object does not match the namespace sent on the request"
    await api.create(MAPS, config_map())
    answer = await api("PUT", f"{MAPS}/m", config_map("n"))
    assert answer.message == "the name of the object (n) does not match the name on the URL (m)"


async def test_methods_that_make_no_sense_are_refused(api):
    assert (await api("PUT", MAPS, config_map())).status == 405
    assert (await api("POST", f"{MAPS}/m", config_map())).status == 405


async def test_services_get_addresses_and_keep_them(api):
    path = "/api/v1/namespaces/default/services"
    first = await api.create(path, {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})
    second = await api.create(path, {"metadata": {"name": "b"}, "spec": {"ports": [{"port": 80}], "type": "NodePort"}})
    assert first["spec"]["clusterIP"] != second["spec"]["clusterIP"]
    assert first["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert 30000 <= second["spec"]["ports"][0]["nodePort"] < 32768
    sent = {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 81}]}}
    kept = await api("PUT", f"{path}/a", sent)
    assert kept.json["spec"]["clusterIP"] == first["spec"]["clusterIP"]
    headless = await api.create(path, {"metadata": {"name": "h"}, "spec": {"clusterIP": "None"}})
    assert headless["spec"]["clusterIPs"] == ["None"]


async def test_events_are_one_kind_with_two_faces(api):
    body = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Node", "name": "n"},
        "note": "hello",
        "reason": "Test",
        "reportingController": "c",
        "reportingInstance": "i",
        "action": "Testing",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Normal",
    }
    await api.create("/apis/events.k8s.io/v1/namespaces/default/events", body)
    core = await api.get("/api/v1/namespaces/default/events/e")
    assert (core["apiVersion"], core["message"], core["involvedObject"]["name"]) == ("v1", "hello", "n")
    found = await api.get("/apis/events.k8s.io/v1/events", fieldSelector="regarding.name=n")
    assert [item["note"] for item in found["items"]] == ["hello"]
    changed = await api.patch("/apis/events.k8s.io/v1/namespaces/default/events/e", {"note": "again"})
    assert changed.json["note"] == "again"
    assert (await api.get("/api/v1/namespaces/default/events/e"))["message"] == "again"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2026-01-01T02:00:00+01:00", "2026-01-01T01:00:00Z"),
        ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00Z", None),
    ],
)
async def test_times_are_stored_in_utc_and_the_year_1_is_no_time(api, given, kept):
    await api.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    status = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": given}]}
    answer = await api.patch("/api/v1/nodes/n/status", {"status": status})
    assert answer.json["status"]["conditions"][0]["lastTransitionTime"] == kept


async def test_what_is_no_time_is_refused(api):
    body = {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}
    answer = await api("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", body)
    assert answer.status == 400
    assert 'parsing time "2026-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00"' in answer.message
