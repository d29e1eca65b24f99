"""What the embedded cluster has not built is refused at its field, in objects and in templates of objects."""

from __future__ import annotations

import pytest

CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
PODS = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}


def job(pod=None, **spec):
    return {"template": {"spec": {**PODS, **(pod or {})}}, **spec}


def template(pod):
    labels = {"a": "b"}
    return {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {**PODS, "restartPolicy": "Always", **pod}},
    }


JOBS = "/apis/batch/v1/namespaces/default/jobs"
CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
IN_CRON_JOB = {"schedule": "0 * * * *", "jobTemplate": {"spec": job(CLAIMS)}}


@pytest.mark.parametrize(
    ("path", "spec", "field"),
    [
        ("/api/v1/namespaces/default/pods", {**PODS, **CLAIMS}, "spec.resourceClaims"),
        ("/apis/apps/v1/namespaces/default/deployments", template(CLAIMS), "spec.template.spec.resourceClaims"),
        (JOBS, job(CLAIMS), "spec.template.spec.resourceClaims"),
        (CRON_JOBS, IN_CRON_JOB, "spec.jobTemplate.spec.template.spec.resourceClaims"),
    ],
)
async def test_a_field_without_effect_is_refused(api, path, spec, field):
    answer = await api("POST", path, {"metadata": {"name": "x"}, "spec": spec})
    assert answer.status == 422, answer.json
    assert [cause["field"] for cause in answer.json["details"]["causes"]] == [field]
    assert "the embedded cluster has not built it" in answer.message


async def test_without_them_it_is_accepted(api):
    for path, spec in ((JOBS, job()), (CRON_JOBS, {"schedule": "0 * * * *", "jobTemplate": {"spec": job()}})):
        assert (await api("POST", path, {"metadata": {"name": "x"}, "spec": spec})).status == 201
