"""From a pod's container to a `ContainerSpec`: image, volumes, variables, devices, and what the runtime adds.

A mount or a value that is missing yet is `WaitingFor`, with the words that the kubelet uses in status and events; the
worker tries again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from kubekit.api.core import RuntimeClass, Secret
from kubekit.errors import KubekitError, Retryable
from kubekit.kube import ApiError
from kubekit.protocol import nri_pb2 as pb
from tinykube.images import ImageConfig, ImageMissing
from tinykube.kubelet.applets import APPLETS_DIR, make_applets
from tinykube.kubelet.containers import BindMount, ContainerSpec, Isolation
from tinykube.kubelet.containers.capabilities import capability_mask
from tinykube.kubelet.devices import ContainerDevices
from tinykube.kubelet.env import PATH, ConfigInvalid, Sources, arguments, cluster_env, environment
from tinykube.kubelet.hosts import hosts_file
from tinykube.kubelet.machine import KubeletMachine
from tinykube.kubelet.pod import KubeletPod, MountedConfigMap, SpecContainer, TokenSource
from tinykube.kubelet.resolver import resolver_file
from tinykube.kubelet.resources import group_limits
from tinykube.kubelet.runtimes import CreateFailed
from tinykube.kubelet.sysctls import set_sysctls
from tinykube.kubelet.volumeplaces import ImageUnpulled, VolumePlaces
from tinykube.kubelet.volumes import VolumeUnready, container_mounts, needed_objects

SERVICE_ACCOUNT_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_ROOT_CA: Final = "kube-root-ca.crt"


class WaitingFor(Retryable):
    """A container cannot be started now. `reason` stands in the status (`later_reason` from the second try on).

    `image` is the one that cannot be pulled: of the container, or of a volume.
    """

    def __init__(
        self,
        what: str,
        reason: str,
        *,
        later: str = "",
        event: str = "Failed",
        retry_seconds: float = 10.0,
        image: str = "",
    ) -> None:
        super().__init__(what)
        self.reason = reason
        self.later_reason = later or reason
        self.event = event
        self.image = image
        self.retry_seconds = retry_seconds


class _TokenStatus(msgspec.Struct, rename="camel"):
    token: str
    expiration_timestamp: str = ""


class _TokenRequest(msgspec.Struct):
    status: _TokenStatus


class Preparation:
    """Makes the containers of one pod ready to start."""

    def __init__(self, machine: KubeletMachine, pod: KubeletPod) -> None:
        self.machine = machine
        self.pod = pod
        self.stale = asyncio.Event()  # a mounted object changed
        self.claims_ready = False  # the pod's claims are prepared, by this kubelet or an earlier one
        self._tokens: dict[TokenSource, tuple[str, float]] = {}
        self._volumes = VolumePlaces(machine, pod)

    @property
    def refresh_at(self) -> float | None:
        """When the first of the pod's tokens is due, in seconds since the epoch."""
        return min((at for _, at in self._tokens.values()), default=None)

    async def refresh(self) -> None:
        """Write the volumes' files again from the API server's current objects. Raises VolumeUnready, ApiError."""
        self.stale.clear()
        await self._places(await self._sources())

    def close(self) -> None:
        self.machine.objects.forget(self.stale)

    async def container(self, container: SpecContainer, attempt: int) -> ContainerSpec:
        """Everything a start needs. Raises WaitingFor."""
        machine, pod = self.machine, self.pod
        try:
            image = machine.images.find(container.image)
        except ImageMissing as error:
            if container.image_pull_policy == "Never":
                text = f'Container image "{container.image}" is not present with pull policy of Never'
                raise WaitingFor(text, "ErrImageNeverPull") from error
            text = f'Failed to pull image "{container.image}": {error}'
            raise WaitingFor(text, "ErrImagePull", later="ImagePullBackOff", image=container.image) from error
        await self._prepare_claims()
        try:
            sources = await self._sources()
            places = await self._places(sources)
            base = {**cluster_env(machine.cluster.host, machine.cluster.port), **image.environment}
            applets = await self._applet_mounts(image)
            base["PATH"] = ":".join((*(mount.target for mount in applets), *image.path, PATH))
            services = await machine.services.env(pod.metadata.namespace)
            if pod.spec.enable_service_links:
                base = {**services, **base}
            env = environment(pod, container, sources, base)
            by_path = machine.launcher.mode.isolation is Isolation.NONE
            mounts = [
                *container_mounts(container, pod.spec.volumes, places, env, by_path=by_path),
                *self._image_mounts(container, image),
            ]
            mounts += [mount for mount in applets if mount.target not in {one.target for one in mounts}]
        except ImageUnpulled as error:
            raise WaitingFor(error.what, "ErrImagePull", later="ImagePullBackOff", image=error.image) from error
        except VolumeUnready as error:
            raise WaitingFor(error.what, "ContainerCreating", event="FailedMount", retry_seconds=2.0) from error
        except ConfigInvalid as error:
            raise WaitingFor(f"Error: {error.what}", "CreateContainerConfigError") from error
        except (ApiError, Retryable, OSError) as error:
            raise WaitingFor(str(error), "ContainerCreating", event="FailedMount", retry_seconds=2.0) from error
        self._refuse_root(container)
        command, args = arguments(container, env)
        argv = image.command_line(command, args, machine.pod_ip(pod.metadata.uid))
        spec = self._spec(container, argv, env, mounts, attempt)
        address = machine.pod_ip(pod.metadata.uid) if image.own_address and not pod.spec.host_network else ""
        spec = msgspec.structs.replace(spec, programs=image.programs, address=address, links=image.file_links())
        try:
            return await self._finish(container, spec, attempt)
        except (CreateFailed, KubekitError) as error:
            raise WaitingFor(f"Error: {error.what}", "CreateContainerError", event="Failed") from error

    async def _prepare_claims(self) -> None:
        """Prepare the devices of the pod's claims, once: containers that start again find them as they were."""
        if self.claims_ready:
            return
        try:
            await self.machine.claims.prepare(self.pod)
        except Retryable as error:
            text = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
            event = "FailedPrepareDynamicResources"
            raise WaitingFor(text, "ContainerCreating", event=event, retry_seconds=2.0) from error
        self.claims_ready = True

    async def _applet_mounts(self, image: ImageConfig) -> list[BindMount]:
        """The /bin of an image with busybox. The machine's programs stay in /usr/bin."""
        if not image.busybox:
            return []
        made = await asyncio.to_thread(make_applets, Path(image.busybox), self.machine.root / APPLETS_DIR)
        return [BindMount(str(made), "/bin", read_only=True)]

    def _image_mounts(self, container: SpecContainer, image: ImageConfig) -> list[BindMount]:
        """The files of the image: its own directories, and those of this machine that stand for its programs."""
        home = self.machine.pod_dir(self.pod.metadata.uid) / "containers" / container.name / "image"
        mounted = {mount.mount_path.rstrip("/") for mount in container.volume_mounts}
        mounts = []
        for directory in image.directories:
            place = home / directory.lstrip("/")
            if directory not in mounted:
                place.mkdir(parents=True, exist_ok=True)
                place.chmod(0o777)  # whichever user the container is
                mounts.append(BindMount(str(place), directory))
        if image.mapped:  # at its own path, which may lie below /tmp or in a closed home
            mounts.append(BindMount(image.mapped, image.mapped, read_only=True))
            if (
                self.machine.launcher.mode.isolation is Isolation.NONE
            ):  # such a container sees mounts only, by their paths
                mounts += [BindMount(source, target, read_only=True) for source, target in image.file_links()]
        return mounts

    async def _finish(self, container: SpecContainer, spec: ContainerSpec, attempt: int) -> ContainerSpec:
        """Add the parts of devices and runtime."""
        machine, pod = self.machine, self.pod
        given = await machine.devices.prepare_start(pod, container.name)
        given = given.joined(ContainerDevices(cdi=machine.claims.cdi_devices(pod, container)))
        handler = ""
        if pod.spec.runtime_class_name:
            handler = (await machine.client.get(RuntimeClass, pod.spec.runtime_class_name)).handler
        adjustment = await machine.runtime.adjust(self._sandbox(), self._asked(container, spec, attempt), given)
        return machine.runtime.create(spec, given, handler, adjustment)

    def _sandbox(self) -> pb.PodSandbox:
        """The pod as a runtime tells its plugins."""
        meta = self.pod.metadata
        return pb.PodSandbox(
            id=meta.uid,
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            labels=meta.labels,
            annotations=meta.annotations,
        )

    def _asked(self, container: SpecContainer, spec: ContainerSpec, attempt: int) -> pb.Container:
        uid = self.pod.metadata.uid
        return pb.Container(
            id=f"{uid}-{container.name}-{attempt}",
            pod_sandbox_id=uid,
            name=container.name,
            args=spec.argv,
            env=[f"{key}={value}" for key, value in spec.env.items()],
            mounts=[pb.Mount(destination=mount.target, source=mount.source, type="bind") for mount in spec.mounts],
        )

    def _spec(
        self,
        container: SpecContainer,
        argv: tuple[str, ...],
        env: dict[str, str],
        mounts: list[BindMount],
        attempt: int,
    ) -> ContainerSpec:
        machine, context, pod = self.machine, container.security_context, self.pod
        shared = pod.spec.security_context
        home = machine.pod_dir(pod.metadata.uid)
        message = self._message_file(container, attempt)
        message.parent.mkdir(parents=True, exist_ok=True)
        message.touch()
        message.chmod(0o666)  # whichever user the container is
        hostname = (pod.spec.hostname or pod.metadata.name)[:63].rstrip("-.")
        hosts = home / "etc-hosts"
        own_lines = hosts_file(pod, machine.pod_ip(pod.metadata.uid), hostname, machine.hosts)
        machine.services.keep(pod.metadata.uid, hosts, pod.metadata.namespace, own_lines)
        resolver = home / "resolv.conf"
        resolver.write_text(resolver_file(pod, machine.services.dns_address, machine.resolver))
        own = [
            BindMount(str(message), container.termination_message_path),
            BindMount(str(hosts), "/etc/hosts"),
            BindMount(str(resolver), "/etc/resolv.conf"),
        ]
        if machine.launcher.mode.isolation is Isolation.NONE:
            own = own[:1]
            env = {**env, **self._without_mounts(mounts)}
        targets = {mount.target for mount in mounts}
        in_memory = {v.name for v in pod.spec.volumes if v.empty_dir is not None and v.empty_dir.medium == "Memory"}
        groups = set(shared.supplemental_groups) | ({shared.fs_group} if shared.fs_group is not None else set())
        return ContainerSpec(
            argv=argv,
            env=env,
            cwd=container.working_dir,
            user=shared.run_as_user if context.run_as_user is None else context.run_as_user,
            group=shared.run_as_group if context.run_as_group is None else context.run_as_group,
            groups=tuple(sorted(groups)),
            mounts=(*mounts, *(m for m in own if m.target not in targets)),
            privileged=context.privileged,
            capabilities=None
            if context.privileged
            else capability_mask(context.capabilities.add, context.capabilities.drop),
            limits=group_limits(container.resources),
            sysctls=set_sysctls(pod),
            no_new_privileges=context.allow_privilege_escalation is False,
            host_pid=pod.spec.host_pid or pod.spec.share_process_namespace,
            read_only_root=context.read_only_root_filesystem,
            hostname=hostname,
            volumes=tuple(m.mount_path for m in container.volume_mounts if m.mount_path != SERVICE_ACCOUNT_DIR),
            in_memory=tuple(m.mount_path for m in container.volume_mounts if m.name in in_memory),
        )

    def _refuse_root(self, container: SpecContainer) -> None:
        context, shared = container.security_context, self.pod.spec.security_context
        wanted = shared.run_as_non_root if context.run_as_non_root is None else context.run_as_non_root
        user = shared.run_as_user if context.run_as_user is None else context.run_as_user
        if wanted and not user:
            raise WaitingFor(
                "Error: container has runAsNonRoot and image will run as root", "CreateContainerConfigError"
            )

    def _without_mounts(self, mounts: list[BindMount]) -> dict[str, str]:
        """Without namespaces in-cluster clients find the API server by a kubeconfig file made from the token."""
        account = next((m.source for m in mounts if m.target.rstrip("/") == SERVICE_ACCOUNT_DIR), None)
        if account is None:
            return {}
        cluster = self.machine.cluster
        server = {"server": f"{cluster.scheme}://{cluster.host}:{cluster.port}"}
        if cluster.ca:
            server["certificate-authority"] = f"{account}/ca.crt"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "in", "cluster": server}],
            "users": [{"name": "in", "user": {"tokenFile": f"{account}/token"}}],
            "contexts": [
                {"name": "in", "context": {"cluster": "in", "user": "in", "namespace": self.pod.metadata.namespace}}
            ],
            "current-context": "in",
        }
        path = self.machine.pod_dir(self.pod.metadata.uid) / "kubeconfig"
        path.write_bytes(msgspec.json.encode(config))
        return {"KUBECONFIG": str(path)}

    # -- volumes ---------------------------------------------------------------------------------------------------

    async def _places(self, sources: Sources) -> dict[str, Path]:
        """Make the pod's volumes, or their files again, and return where they lie."""
        tokens = {source: token for source, (token, _) in self._tokens.items()}
        return await self._volumes.make(self.pod, sources, tokens)

    async def _sources(self) -> Sources:
        """The ConfigMaps, Secrets and tokens that the pod refers to."""
        pod, objects = self.pod, self.machine.objects
        space = pod.metadata.namespace
        maps, secrets, tokens = needed_objects(pod)
        found_maps: dict[str, MountedConfigMap] = {}
        found_secrets = {}
        for name in maps:
            config_map = await objects.get(MountedConfigMap, space, name, self.stale)
            if config_map is not None:
                found_maps[name] = config_map
            elif name == _ROOT_CA:  # published a moment after its namespace
                found_maps[name] = MountedConfigMap(data={"ca.crt": self.machine.cluster.ca.decode()})
        for name in secrets:
            secret = await objects.get(Secret, space, name, self.stale)
            if secret is not None:
                found_secrets[name] = secret.data
        for token in tokens:
            await self._token(token)
        return Sources(
            config_maps={name: one.data for name, one in found_maps.items()},
            config_files={
                name: {key: text.encode() for key, text in one.data.items()} | one.binary_data
                for name, one in found_maps.items()
            },
            secrets=found_secrets,
            host_ip=self.machine.host_ip,
            pod_ip=self.machine.pod_ip(pod.metadata.uid),
            allocatable=self.machine.allocatable,
        )

    async def _token(self, source: TokenSource) -> str:
        """A token of the pod's service account, kept for four fifths of its life."""
        meta = self.pod.metadata
        now = self.machine.clock.time()
        have = self._tokens.get(source)
        if have is not None and now < have[1]:
            return have[0]
        account = self.pod.spec.service_account_name or "default"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [source.audience] if source.audience else [],
                "expirationSeconds": source.expiration_seconds,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid},
            },
        }
        path = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts/{account}/token"
        answer = await self.machine.client.request("POST", path, None, body)
        token = msgspec.json.decode(answer, type=_TokenRequest).status.token
        self._tokens[source] = (token, now + 0.8 * source.expiration_seconds)
        return token

    # -- termination messages --------------------------------------------------------------------------------------

    def _message_file(self, container: SpecContainer, attempt: int) -> Path:
        return self.machine.pod_dir(self.pod.metadata.uid) / "containers" / container.name / f"termination-{attempt}"

    def termination_message(self, container: SpecContainer, attempt: int) -> str:
        try:
            return self._message_file(container, attempt).read_text(errors="replace").strip()
        except OSError:
            return ""
