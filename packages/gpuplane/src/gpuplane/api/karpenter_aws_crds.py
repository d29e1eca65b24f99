"""The CustomResourceDefinitions of Karpenter's classes for AWS, old and new, and a Provisioner's own `provider`.

Source: the CRD of Karpenter's provider for AWS 1.14 (EC2NodeClass), and CRD and webhook of 0.27 (AWSNodeTemplate).
"""

from __future__ import annotations

from typing import Any, Final

from gpuplane.api.karpenter import AWSNodeTemplate, EC2NodeClass
from gpuplane.api.schema import PrinterColumn, ServedKind
from gpuplane.api.schema_forms import (
    Schema,
    amount,
    amounts,
    conditions,
    entries,
    flag,
    group,
    pairs,
    rule,
    text,
    whole,
)

FAMILIES: Final = ("AL2", "AL2023", "Bottlerocket", "Custom", "Windows2019", "Windows2022", "Windows2025")
OLD_FAMILIES: Final = ("AL2", "Bottlerocket", "Ubuntu", "Windows2019", "Windows2022", "Custom")
ALIASES: Final = tuple(family.lower() for family in FAMILIES if family != "Custom")
SIGNALS: Final = (
    *("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"),
    "pid.available",
)
RESERVED: Final = ("cpu", "memory", "ephemeral-storage", "pid")
RESTRICTED_TAGS: Final = (
    *("eks:eks-cluster-name", "karpenter.sh/nodepool", "karpenter.sh/nodeclaim", "karpenter.k8s.aws/ec2nodeclass"),
)
OLD_RESTRICTED_TAGS: Final = ("karpenter.sh/provisioner-name",)
CLUSTER_TAG: Final = "kubernetes.io/cluster"
VOLUME_TYPES: Final = ("standard", "io1", "io2", "gp2", "sc1", "st1", "gp3")
VOLUME_SIZE: Final = (
    r"^((?:[1-9][0-9]{0,3}|[1-4][0-9]{4}|[5][0-8][0-9]{3}|59000)Gi"
    r"|(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|[6][0-3][0-9]{3}|64000)G|([1-9]|[1-4][0-9]|5[0-8])Ti|([1-9]|[1-5][0-9]|6[0-4])T)$"
)
WITHOUT_TEMPLATE: Final = ("securityGroupSelector", "metadataOptions", "amiFamily", "instanceProfile")
SUBNET_ID, GROUP_ID, IMAGE_ID = "subnet-[0-9a-z]+", "sg-[0-9a-z]+", "ami-[0-9a-z]+"


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def kubelet(about: str, *, old: bool) -> Schema:
    """The settings of the kubelet: those of a Provisioner, or of an EC2NodeClass."""

    def keyed(about: str, names: tuple[str, ...]) -> Schema:
        return pairs(about, rules=() if old else [rule(f"self.all(k, k in [{_words(names)}])", "the key is unknown")])

    def reserved(about: str) -> Schema:
        if old:
            return amounts(about)
        made = keyed(about, RESERVED)
        positive = {"rule": "self.all(k, !self[k].startsWith('-'))", "message": "a quantity is below 0"}
        return {**made, "x-kubernetes-validations": [*made["x-kubernetes-validations"], positive]}

    fields = {
        "clusterDNS": entries("addresses of the cluster's DNS", {"type": "string"}),
        "maxPods": whole("most pods on a node", 0, format="int32"),
        "podsPerCore": whole("most pods on a node for each core", 0, format="int32"),
        "systemReserved": reserved("reserved for the system"),
        "kubeReserved": reserved("reserved for the kubelet and the runtime"),
        "evictionHard": keyed("thresholds of eviction without grace, by signal", SIGNALS),
        "evictionSoft": keyed("thresholds of eviction with grace, by signal", SIGNALS),
        "evictionSoftGracePeriod": keyed("grace of soft evictions, by signal", SIGNALS),
        "evictionMaxPodGracePeriod": whole("longest grace of a pod that is evicted, in seconds", format="int32"),
        "imageGCHighThresholdPercent": whole("use of the disk above which images are removed", 0, 100, format="int32"),
        "imageGCLowThresholdPercent": whole("use of the disk down to which images are removed", 0, 100, format="int32"),
        "cpuCFSQuota": flag("whether limits of CPU are enforced"),
    }
    if old:
        fields["containerRuntime"] = text("the runtime of containers")
    rules = [
        rule(
            "!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) "
            "|| self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent",
            "imageGCHighThresholdPercent is not above imageGCLowThresholdPercent",
        ),
        rule(
            "!has(self.evictionSoft) || (has(self.evictionSoftGracePeriod) "
            "&& self.evictionSoft.all(k, k in self.evictionSoftGracePeriod))",
            "evictionSoft has a signal without evictionSoftGracePeriod",
        ),
        rule(
            "!has(self.evictionSoftGracePeriod) || (has(self.evictionSoft) "
            "&& self.evictionSoftGracePeriod.all(k, k in self.evictionSoft))",
            "evictionSoftGracePeriod has a signal without evictionSoft",
        ),
    ]
    return group(about, fields, rules=rules)


def _metadata_options(*, old: bool) -> Schema:
    def default(value: Any) -> dict[str, Any]:
        return {} if old else {"default": value}

    switch = ["enabled", "disabled"]
    fields = {
        "httpEndpoint": text("whether instances can ask for their metadata", enum=switch, **default("enabled")),
        "httpProtocolIPv6": text("whether by IPv6 too", enum=switch, **default("disabled")),
        "httpPutResponseHopLimit": whole("hops that an answer may take", 1, 64, format="int64", **default(1)),
        "httpTokens": text("whether a token is needed", enum=["required", "optional"], **default("required")),
    }
    made = group("the metadata service of instances", fields)
    if not old:
        made["default"] = {name: field["default"] for name, field in fields.items()}
    return made


def _devices(*, old: bool) -> Schema:
    ebs = {
        "deleteOnTermination": flag("whether the volume goes with the instance"),
        "encrypted": flag("whether the volume is encrypted"),
        "iops": whole("operations a second", format="int64"),
        "throughput": whole("MiB a second, for gp3", format="int64"),
        "kmsKeyID": text("key of the encryption"),
        "snapshotID": text("snapshot that the volume is made of"),
        "volumeSize": amount("size such as 100Gi") if old else text("size such as 100Gi", pattern=VOLUME_SIZE),
        "volumeType": text("type of the volume", enum=list(VOLUME_TYPES)),
    }
    rules = [rule("has(self.snapshotID) || has(self.volumeSize)", "neither snapshotID nor volumeSize is set")]
    if not old:
        ebs["volumeInitializationRate"] = whole("MiB a second at which the snapshot is read", 100, 300, format="int32")
        rules.append(
            rule(
                "!has(self.volumeInitializationRate) || (has(self.snapshotID) && self.snapshotID != '')",
                "volumeInitializationRate needs a snapshotID",
            )
        )
    fields = {"deviceName": text("name of the device"), "ebs": group("the volume", ebs, rules=rules)}
    if old:
        return entries("disks of instances", group("a disk", fields, ("deviceName",)), maxItems=50)
    fields["rootVolume"] = flag("whether the kubelet's directory lies on it")
    one = rule("self.filter(d, has(d.rootVolume) && d.rootVolume).size() <= 1", "more than one disk is the rootVolume")
    return entries("disks of instances", group("a disk", fields), [one], maxItems=50)


def _tags(about: str, *restricted: str) -> Schema:
    rules = [rule("self.all(k, k != '')", "the key of a tag is empty")]
    if restricted:
        closed = f"!(k in [{_words(restricted)}]) && !k.startsWith('{CLUSTER_TAG}')"
        rules.append(rule(f"self.all(k, {closed})", "a tag is the autoscaler's or the cluster's own"))
    return pairs(about, rules=rules)


def _selector(about: str, form: str) -> Schema:
    """Tags of the old API; `aws-ids` takes ids with commas between."""
    ids = f"!('aws-ids' in self) || self['aws-ids'].split(',').all(i, i.matches('{form}'))"
    value = {"type": "string", "maxLength": 1024}
    return pairs(
        about,
        value,
        [
            rule("self.all(k, k != '' && self[k] != '')", "a key or a value is empty"),
            rule(ids, f"aws-ids has an id that is not of the form {form}"),
        ],
        maxProperties=50,
    )


def _old_machines(*, template: bool) -> Schema:
    """AWSNodeTemplate's spec, or a Provisioner's `provider`."""
    fields = {
        "amiFamily": text("operating system of instances", enum=list(OLD_FAMILIES)),
        "context": text("a field of EC2's CreateFleet"),
        "instanceProfile": text("instance profile of instances"),
        "subnetSelector": _selector("tags of subnets, or their ids as aws-ids", SUBNET_ID),
        "securityGroupSelector": _selector("tags of security groups, or their ids as aws-ids", GROUP_ID),
        "tags": _tags("tags of instances", *(OLD_RESTRICTED_TAGS if template else ())),
        "launchTemplate": text("name of a launch template, which then describes the machines"),
        "metadataOptions": _metadata_options(old=True),
        "blockDeviceMappings": _devices(old=True),
        "apiVersion": text("version of the provider's configuration"),
        "kind": text("kind of the provider's configuration"),
    }
    without = list(WITHOUT_TEMPLATE)
    if template:
        fields |= {
            "userData": text("user data of instances"),
            "amiSelector": _selector("tags of images, or their ids as aws-ids", IMAGE_ID),
            "detailedMonitoring": flag("whether instances report each minute"),
        }
        without += ["userData", "amiSelector"]
    rules = [
        rule(f"!has(self.launchTemplate) || !has(self.{name})", f"launchTemplate and {name} are both set")
        for name in without
    ]
    rules += [
        rule(
            "!has(self.launchTemplate) || !has(self.blockDeviceMappings) || self.blockDeviceMappings.size() == 0",
            "launchTemplate and blockDeviceMappings are both set",
        ),
        rule(
            "has(self.launchTemplate) || has(self.securityGroupSelector)",
            "neither launchTemplate nor securityGroupSelector is set",
        ),
    ]
    if template:
        rules.append(
            rule(
                "!has(self.amiFamily) || self.amiFamily != 'Custom' || has(self.amiSelector)",
                "amiFamily Custom needs an amiSelector",
            )
        )
    return group("the machines", fields, ("subnetSelector",), rules)


def inline_provider() -> Schema:
    return _old_machines(template=False)


def _terms(about: str, fields: dict[str, Schema], alone: tuple[str, ...], **more: Any) -> Schema:
    """Terms that select by any of `fields`; of `alone` each stands without the others."""
    names = tuple(fields)
    some = [name for name in names if name not in ("owner", "ownerID")]
    rules = [rule(" || ".join(f"has(self.{name})" for name in some), f"none of {', '.join(some)} is set")]
    for name in alone:
        others = " || ".join(f"has(self.{other})" for other in names if other != name)
        rules.append(rule(f"!has(self.{name}) || !({others})", f"{name} stands alone in a term"))
    return entries(about, group("a term", fields, rules=rules), maxItems=30, **more)


def _wanted_tags(about: str) -> Schema:
    full = [rule("self.all(k, k != '' && self[k] != '')", "a key or a value is empty")]
    return pairs(about, rules=full, maxProperties=20)


def _alias() -> Schema:
    families = _words(ALIASES)
    rules = [
        {"rule": "self.matches('^[a-zA-Z0-9]+@.+$')", "message": "alias is not of the form family@version"},
        {"rule": f"self.find('^[^@]+') in [{families}]", "message": f"the family is not one of {', '.join(ALIASES)}"},
        {
            "rule": "!self.startsWith('windows') || self.endsWith('@latest')",
            "message": "images of Windows have the version latest only",
        },
    ]
    return text("image of EKS, as al2023@latest", maxLength=30, **{"x-kubernetes-validations": rules})


def _ec2_node_class() -> Schema:
    tags = "tags to have; * for any value"
    reservations = {
        "tags": _wanted_tags(tags),
        "id": text("id of the reservation", pattern="^cr-[0-9a-z]+$"),
        "ownerID": text("account of the reservation", pattern="^[0-9]{12}$"),
        "instanceMatchCriteria": text("how instances match", enum=["open", "targeted"]),
    }
    images = {
        "alias": _alias(),
        "tags": _wanted_tags(tags),
        "id": text("id of the image", pattern=IMAGE_ID),
        "name": text("name of the image"),
        "owner": text("owner of the image: an account, self, amazon or aws-marketplace"),
        "ssmParameter": text("parameter of SSM that has the id"),
    }
    image_terms = _terms("images, any of the terms", images, ("alias", "id"), minItems=1)
    image_terms["x-kubernetes-validations"] = [
        {"rule": "self.size() == 1 || !self.exists(t, has(t.alias))", "message": "an alias is the only term"}
    ]
    groups = {"tags": _wanted_tags(tags), "id": text("its id", pattern=GROUP_ID), "name": text("its name")}
    subnets = {"tags": _wanted_tags(tags), "id": text("id of the subnet", pattern=SUBNET_ID)}
    fields = {
        "subnetSelectorTerms": _terms("subnets, any of the terms", subnets, ("id",), minItems=1),
        "securityGroupSelectorTerms": _terms("security groups, any term", groups, ("id", "name"), minItems=1),
        "capacityReservationSelectorTerms": _terms("capacity reservations, any term", reservations, ("id",)),
        "amiSelectorTerms": image_terms,
        "amiFamily": text("operating system of instances", enum=list(FAMILIES)),
        "userData": text("user data of instances"),
        "role": text("IAM role of instances", minLength=1),
        "instanceProfile": text("instance profile of instances", minLength=1),
        "tags": _tags("tags of instances, volumes and launch templates", *RESTRICTED_TAGS),
        "kubelet": kubelet("settings of the kubelet", old=False),
        "blockDeviceMappings": _devices(old=False),
        "instanceStorePolicy": text("how local disks are used", enum=["RAID0"]),
        "detailedMonitoring": flag("whether instances report each minute"),
        "associatePublicIPAddress": flag("whether instances get public addresses"),
        "ipPrefixCount": whole("prefixes of IPv4 of the network interface", 0, format="int32"),
        "metadataOptions": _metadata_options(old=False),
        "context": text("a field of EC2's CreateFleet"),
    }
    term = "self.amiSelectorTerms.exists(t, has(t.alias)"
    rules = [
        rule("has(self.role) != has(self.instanceProfile)", "exactly one of role and instanceProfile is set"),
        rule(f"has(self.amiFamily) || {term})", "amiFamily is set where no term is an alias"),
    ]
    rules += [
        rule(
            f"!has(self.amiFamily) || self.amiFamily in ['Custom', '{family}'] "
            f"|| !{term} && t.alias.startsWith('{family.lower()}@'))",
            f"amiFamily is {family} or Custom, as the alias",
        )
        for family in FAMILIES
        if family != "Custom"
    ]
    spec = group(
        "the machines", fields, ("subnetSelectorTerms", "securityGroupSelectorTerms", "amiSelectorTerms"), rules
    )
    return _class("Machines of pools on AWS.", spec)


def _aws_node_template() -> Schema:
    return _class("Machines of pools on AWS, as Karpenter up to 0.32 declares them.", _old_machines(template=True))


def _class(about: str, spec: Schema) -> Schema:
    subnet = {"id": text("its id"), "zone": text("its zone"), "zoneID": text("id of its zone")}
    condition = {
        "key": text("a label"),
        "operator": text("how the values are compared"),
        "values": entries("values of the label", {"type": "string"}),
    }
    image = {
        "id": text("its id"),
        "name": text("its name"),
        "deprecated": flag("whether it is deprecated"),
        "requirements": entries("which types it runs on", group("a condition", condition, ("key", "operator"))),
    }
    security = {"id": text("its id"), "name": text("its name")}
    status = {
        "subnets": entries("the subnets found", group("a subnet", subnet, ("id", "zone"))),
        "securityGroups": entries("the security groups found", group("a security group", security, ("id",))),
        "amis": entries("the images found", group("an image", image, ("id",))),
        "instanceProfile": text("the instance profile used"),
        "conditions": conditions(),
    }
    return group(about, {"spec": spec, "status": group("what is", status)}, ("spec",))


_AGE: Final = PrinterColumn("Age", ".metadata.creationTimestamp", type="date")
AWS_DEFINITIONS: Final = (
    ServedKind(
        kind=AWSNodeTemplate,
        singular="awsnodetemplate",
        schema=_aws_node_template,
        categories=("karpenter",),
        status_subresource=True,
        columns=(_AGE,),
    ),
    ServedKind(
        kind=EC2NodeClass,
        singular="ec2nodeclass",
        schema=_ec2_node_class,
        short_names=("ec2nc", "ec2ncs"),
        categories=("karpenter",),
        status_subresource=True,
        columns=(
            PrinterColumn("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            _AGE,
            PrinterColumn("Role", ".spec.role", wide=True),
        ),
    ),
)
