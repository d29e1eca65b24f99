"""Launches by the launch template that a Provisioner names, and what becomes of them when EC2 misbehaves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpuplane.autoscaler.providers.aws import fleet
from gpuplane.autoscaler.providers.aws.lookup import FoundSubnet
from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from gpuplane.autoscaler.providers.provider import NoCapacity
from kubekit.errors import Retryable, Terminal
from packages.gpuplane.tests.autoscaler.aws.account import INLINE, ZONES, Account, identity, launch_request, offering
from tests.support.virtual_time import VirtualClock

SPOT = "spot"


def tags_of(instance: dict[str, object]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance["Tags"]}  # type: ignore[attr-defined]


async def test_an_instance_has_the_offering_and_the_names_of_its_claim(account: Account, provider: AwsProvider) -> None:
    launched = await provider.launch(launch_request(offering("g4dn.xlarge", 0.526, ZONES[1])))
    [found] = account.instances()
    assert launched.provider_id == f"aws:///{ZONES[1]}/{found['InstanceId']}"
    assert (found["InstanceType"], found["SubnetId"]) == ("g4dn.xlarge", account.subnets[ZONES[1]])
    assert (launched.image, launched.version) == (account.image, "1")
    assert found["ImageId"] == account.image
    assert (
        tags_of(found).items()
        >= {
            "karpenter.sh/managed-by": "demo",
            "karpenter.sh/nodeclaim": "gpu-1",
            "karpenter.sh/nodepool": "gpu",
            "karpenter.sh/discovery": "demo",
            "kubernetes.io/cluster/demo": "owned",
        }.items()
    )


async def test_instances_lists_those_of_this_cluster_until_they_are_gone(
    account: Account, provider: AwsProvider
) -> None:
    account.ec2.run_instances(ImageId=account.image, MinCount=1, MaxCount=1)
    launched = await provider.launch(launch_request())
    [found] = await provider.instances()
    assert (found.provider_id, found.claim, found.pool) == (launched.provider_id, "gpu-1", "gpu")
    assert (found.machine, found.capacity_type, found.version) == ("g4dn.xlarge", "on-demand", "1")
    assert found.subnet == launched.subnet and found.image == launched.image
    await provider.terminate(launched.provider_id)
    assert not await provider.instances()
    assert await provider.instance(launched.provider_id) is None
    await provider.terminate(launched.provider_id)


async def test_instances_of_unknown_ids_are_gone(provider: AwsProvider) -> None:
    unknown = f"aws:///{ZONES[0]}/i-0123456789abcdef0"
    assert await provider.instance(unknown) is None
    await provider.terminate(unknown)
    assert await provider.instance("kind://docker/a/b") is None


@pytest.mark.parametrize(
    ("capacity_type", "own_prices", "strategy"),
    [
        ("on-demand", False, "lowest-price"),
        ("on-demand", True, "prioritized"),
        (SPOT, False, "price-capacity-optimized"),
        (SPOT, True, "capacity-optimized-prioritized"),
    ],
)
def test_prices_of_the_users_own_are_priorities(capacity_type: str, own_prices: bool, strategy: str) -> None:
    subnet = FoundSubnet("subnet-1", ZONES[0], 9)
    dear, cheap = (offering(name, price, capacity_type=capacity_type) for name, price in (("a", 2.0), ("b", 1.0)))
    chosen = fleet.choices((dear, cheap), [subnet], {})
    asked = fleet.fleet_request(chosen, "template", "1", token="t", tags={}, own_prices=own_prices)
    options = asked["SpotOptions" if capacity_type == SPOT else "OnDemandOptions"]
    assert options == {"AllocationStrategy": strategy}
    overrides = asked["LaunchTemplateConfigs"][0]["Overrides"]
    assert [(one["InstanceType"], one["Priority"]) for one in overrides] == [("b", 0.0), ("a", 1.0)]


async def test_the_cheapest_comes_first_and_spot_only_where_it_is_cheaper(
    account: Account, provider: AwsProvider
) -> None:
    launched = await provider.launch(
        launch_request(
            offering("g4dn.2xlarge", 0.752),
            offering("g4dn.xlarge", 0.526),
            offering("g4dn.xlarge", 0.2, capacity_type=SPOT),
            offering("g4dn.12xlarge", 1.9, capacity_type=SPOT),
        )
    )
    assert (launched.machine, launched.capacity_type) == ("g4dn.xlarge", SPOT)
    [found] = await provider.instances()
    assert found.capacity_type == SPOT
    other = launch_request(
        offering("g4dn.xlarge", 0.526), offering("g4dn.xlarge", 0.6, capacity_type=SPOT), claim="gpu-2", token="uid-2"
    )
    assert (await provider.launch(other)).capacity_type == "on-demand"


async def test_on_demand_follows_where_spot_has_no_capacity(account: Account, provider: AwsProvider) -> None:
    account.endpoint.closed = {("g4dn.xlarge", ZONES[0], SPOT)}
    request = launch_request(offering("g4dn.xlarge", 0.2, capacity_type=SPOT), offering("g4dn.xlarge", 0.526))
    assert (await provider.launch(request)).capacity_type == "on-demand"


async def test_missing_capacity_names_the_offerings_to_close(account: Account, provider: AwsProvider) -> None:
    both = offering("g4dn.xlarge", 0.526), offering("g4dn.xlarge", 0.526, ZONES[1])
    account.endpoint.closed = {("g4dn.xlarge", zone, "on-demand") for zone in ZONES}
    with pytest.raises(NoCapacity, match="InsufficientInstanceCapacity") as caught:
        await provider.launch(launch_request(*both))
    assert set(caught.value.closed) == set(both)
    assert not account.instances()


async def test_a_zone_without_a_subnet_has_no_capacity(provider: AwsProvider) -> None:
    far = offering("g4dn.xlarge", 0.526, "us-east-1f")
    with pytest.raises(NoCapacity, match="no subnet in us-east-1f") as caught:
        await provider.launch(launch_request(far))
    assert caught.value.closed == (far,)


async def test_a_full_subnet_closes_all_types_of_its_zone(account: Account, provider: AwsProvider) -> None:
    account.endpoint.refusal = "InsufficientFreeAddressesInSubnet"
    account.endpoint.closed = {("g4dn.xlarge", ZONES[0], "on-demand"), ("g4dn.2xlarge", ZONES[0], "on-demand")}
    both = offering("g4dn.xlarge", 0.526), offering("g4dn.2xlarge", 0.752)
    with pytest.raises(NoCapacity) as caught:
        await provider.launch(launch_request(*both))
    assert set(caught.value.closed) == set(both)


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_a_lost_answer_buys_nothing_twice(account: Account, provider: AwsProvider, lost: str) -> None:
    account.endpoint.plan("CreateFleet", lose=lost, times=3)
    with pytest.raises(Retryable):
        await provider.launch(launch_request())
    launched = await provider.launch(launch_request())
    [found] = account.instances()
    assert identity(launched) == found["InstanceId"]


async def test_a_new_process_finds_the_launch_of_the_old_one(
    account: Account, provider: AwsProvider, clock: VirtualClock
) -> None:
    launched = await provider.launch(launch_request())
    second = AwsProvider(provider.settings, clock=clock)
    dearer = launch_request(offering("g4dn.2xlarge", 0.752))  # prices have changed in between
    assert (await second.launch(dearer)).provider_id == launched.provider_id
    assert len(account.instances()) == 1
    await second.aclose()


async def test_a_claim_of_an_equal_name_gets_its_own_instance(account: Account, provider: AwsProvider) -> None:
    first = await provider.launch(launch_request(token="uid-1"))
    second = await provider.launch(launch_request(token="uid-2"))
    assert first.provider_id != second.provider_id


async def test_an_earlier_launch_that_is_not_shown_yet_is_waited_for(
    account: Account, provider: AwsProvider, clock: VirtualClock
) -> None:
    await provider.launch(launch_request())
    second = AwsProvider(provider.settings, clock=clock)
    account.endpoint.hidden = 1
    with pytest.raises(Retryable, match="does not show its instance yet"):
        await second.launch(launch_request(offering("g4dn.2xlarge", 0.752)))
    assert len(account.instances()) == 1
    await second.aclose()


async def test_a_second_instance_of_a_claim_is_ended(account: Account, provider: AwsProvider) -> None:
    launched = await provider.launch(launch_request())
    [first] = account.instances()
    account.ec2.run_instances(
        ImageId=account.image,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [tag for tag in first["Tags"] if not tag["Key"].startswith("aws:")]}
        ],
    )
    assert len(account.instances()) == 2
    again = await provider.launch(launch_request())
    [left] = account.instances()
    assert identity(again) == left["InstanceId"]
    assert launched.claim == again.claim


async def test_an_instance_that_is_not_shown_yet_is_there(
    account: Account, provider: AwsProvider, clock: VirtualClock
) -> None:
    launched = await provider.launch(launch_request())
    account.endpoint.hidden = 2
    assert await provider.instance(launched.provider_id) == launched
    assert list(await provider.instances()) == [launched]
    account.endpoint.hidden = 2
    # The instance was listed in the meantime, or a minute has passed: then a missing instance is gone.
    clock.jump(61)
    assert await provider.instance(launched.provider_id) is None
    assert not await provider.instances()


async def test_ending_an_instance_that_is_not_shown_yet_is_tried_again(account: Account, provider: AwsProvider) -> None:
    launched = await provider.launch(launch_request())
    account.endpoint.plan("TerminateInstances", code="InvalidInstanceID.NotFound")
    with pytest.raises(Retryable, match="does not know the new instance"):
        await provider.terminate(launched.provider_id)
    await provider.terminate(launched.provider_id)
    assert not account.instances()


async def test_throttling_is_retried_by_boto3_and_then_by_the_caller(account: Account, provider: AwsProvider) -> None:
    account.endpoint.plan("CreateFleet", code="RequestLimitExceeded", status=503, times=3)
    with pytest.raises(Retryable, match="RequestLimitExceeded"):
        await provider.launch(launch_request())
    assert account.endpoint.made.count("CreateFleet") == 3


async def test_a_refusal_names_the_permission_to_grant(account: Account, provider: AwsProvider) -> None:
    text = "You are not authorized to perform this operation. User: arn:aws:sts::1:x is not authorized to perform: "
    account.endpoint.plan(
        "CreateFleet", code="UnauthorizedOperation", message=text + "ec2:RunInstances on resource: y", status=403
    )
    with pytest.raises(Terminal, match="grant ec2:RunInstances to the autoscaler's IAM role"):
        await provider.launch(launch_request())
    account.endpoint.plan("TerminateInstances", code="UnauthorizedOperation", status=403)
    with pytest.raises(Terminal, match="grant ec2:TerminateInstances"):
        await provider.terminate(f"aws:///{ZONES[0]}/i-0123456789abcdef0")


async def test_reboot_restarts_the_instance(account: Account, provider: AwsProvider) -> None:
    launched = await provider.launch(launch_request())
    await provider.reboot(launched.provider_id)
    assert account.endpoint.made[-1] == "RebootInstances"


async def test_a_new_version_of_the_launch_template_is_what_a_class_means(
    account: Account, provider: AwsProvider, clock: VirtualClock
) -> None:
    before = await provider.resolve(INLINE)
    assert (before.zones, before.security_groups, before.version) == (ZONES, (account.group,), "1")
    assert {image for image, _, _ in before.images} == {account.image}
    newer = account.new_image("gpu-2")
    version = account.new_version(newer)
    assert await provider.resolve(INLINE) == before  # remembered
    clock.jump(61)
    after = await provider.resolve(INLINE)
    assert (after.version, {image for image, _, _ in after.images}) == (version, {newer})
    launched = await provider.launch(launch_request())
    assert (launched.version, account.instances()[0]["ImageId"]) == (version, newer)


@pytest.mark.parametrize(
    ("spec", "trouble"),
    [
        ({"launchTemplate": "other"}, "no launch template other; create it"),
        ({"subnetSelector": {"karpenter.sh/discovery": "none"}}, "no subnet has tag karpenter.sh/discovery=none; tag"),
        ({"subnetSelector": None}, "selects no subnets"),
        ({"subnetSelector": "demo"}, "a field has a wrong form"),
    ],
)
async def test_a_class_that_means_nothing_says_why(
    provider: AwsProvider, spec: dict[str, object], trouble: str
) -> None:
    machines = replace(INLINE, spec={**INLINE.spec, **spec})
    assert trouble in (await provider.resolve(machines)).trouble
    with pytest.raises(Terminal, match=r"Provisioner spec\.provider: "):
        await provider.launch(launch_request(machines=machines))
