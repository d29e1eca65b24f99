"""Fields that a body has twice, by `fieldValidation`; JSON and YAML, built-in and applied."""

from __future__ import annotations

MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
TEMPLATE = '{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","image":"j","imagee":"k"}]}}'
DEPLOYMENT = (
    '{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":1,"nosuch":2,"replicas":3,'
    '"nosuch":4,"selector":{"matchLabels":{"a":"b"}},"template":' + TEMPLATE + "}}"
).encode()


async def test_repeated_and_unknown_fields_come_in_the_order_of_the_document(api):
    answer = await api("POST", DEPLOYMENTS, DEPLOYMENT, fieldValidation="Strict")
    assert answer.status == 400
    assert answer.message.partition("strict decoding error: ")[2] == (
        'unknown field "spec.nosuch", duplicate field "spec.replicas", '
        'duplicate field "spec.template.spec.containers[0].image", '
        'unknown field "spec.template.spec.containers[0].imagee"'
    )


async def test_the_last_of_repeated_fields_counts_where_they_are_not_refused(api):
    answer = await api("POST", MAPS, b'{"metadata":{"name":"m"},"data":{"k":"v","k":"w"}}', fieldValidation="Warn")
    assert (answer.status, answer.json["data"]) == (201, {"k": "w"})
    assert answer.headers["warning"] == '299 - "duplicate field \\"data.k\\""'
    answer = await api("POST", DEPLOYMENTS, DEPLOYMENT, fieldValidation="Ignore")
    assert (answer.status, answer.json["spec"]["replicas"]) == (201, 3)
    assert "warning" not in answer.headers


async def test_a_document_with_spaces_repeats_no_field(api):
    body = b'{\n  "metadata": { "name": "m" },\n  "data": { "a": "{\\"a\\": 1}", "b": "\\u00e4" }\n}\n'
    assert (await api("POST", MAPS, body, fieldValidation="Strict")).status == 201


async def test_yaml_says_the_line_of_a_repeated_key(api):
    body = b"metadata:\n  name: m\ndata:\n  k: v\n  k: w\n"
    answer = await api("POST", MAPS, body, headers={"content-type": "application/yaml"}, fieldValidation="Strict")
    assert answer.status == 400
    assert 'strict decoding error: yaml: unmarshal errors:\n  line 5: key "k" already set in map' in answer.message


async def test_an_applied_document_is_read_as_yaml(api):
    body = b'{"apiVersion":"v1","kind":"ConfigMap",\n"metadata":{"name":"m"},\n"data":{"k":"v","k":"w"}}'
    answer = await api.patch(f"{MAPS}/m", body, "apply", fieldManager="one", fieldValidation="Strict")
    assert answer.status == 400
    assert 'line 3: key "k" already set in map' in answer.message


async def test_a_patch_is_at_fault_for_what_it_leaves(api):
    await api.create(MAPS, {"metadata": {"name": "m"}})
    answer = await api.patch(f"{MAPS}/m", b'{"data":{"k":"v","k":"w"}}', fieldValidation="Strict")
    assert (answer.status, answer.json["details"]["causes"][0]["field"]) == (422, "patch")
    assert 'strict decoding error: duplicate field "data.k"' in answer.message
