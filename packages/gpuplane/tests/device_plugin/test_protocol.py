"""The committed stubs are what the .proto files say, and the .proto files say what the kubelet speaks."""

from __future__ import annotations

from pathlib import Path

from kubekit.protocol import deviceplugin_pb2, podresources_pb2
from tinykube.protocol import deviceplugin_pb2_grpc, generate


def test_committed_stubs_are_up_to_date(tmp_path: Path) -> None:
    generated = generate.generate(tmp_path)
    committed = [*generate.MESSAGES.glob("*_pb2*"), *generate.SERVICES.glob("*_pb2*")]
    assert [path.name for path in generated] == sorted(path.name for path in committed)
    for path in generated:
        assert path.read_text() == generate.place(path.name).read_text(), (
            f"{path.name} is stale: python -m tinykube.protocol.generate"
        )


def test_service_paths_are_the_kubelets() -> None:
    services = deviceplugin_pb2.DESCRIPTOR.services_by_name
    assert set(services) == {"Registration", "DevicePlugin"}
    assert services["Registration"].full_name == "v1beta1.Registration"
    assert podresources_pb2.DESCRIPTOR.services_by_name["PodResourcesLister"].full_name == "v1.PodResourcesLister"
    assert hasattr(deviceplugin_pb2_grpc, "add_DevicePluginServicer_to_server")


def test_bytes_on_the_wire() -> None:
    # Written down by hand from the field numbers, so that a renumbered .proto cannot pass with fresh stubs.
    request = deviceplugin_pb2.RegisterRequest(version="v1beta1", endpoint="g.sock", resource_name="nvidia.com/gpu")
    request.options.get_preferred_allocation_available = True
    assert request.SerializeToString() == b"\x0a\x07v1beta1\x12\x06g.sock\x1a\x0envidia.com/gpu\x22\x02\x10\x01"
    response = deviceplugin_pb2.ContainerAllocateResponse(
        envs={"A": "b"}, cdi_devices=[deviceplugin_pb2.CDIDevice(name="x/y=z")]
    )
    assert response.SerializeToString() == b"\x0a\x06\x0a\x01A\x12\x01b\x2a\x07\x0a\x05x/y=z"
    device = deviceplugin_pb2.Device(
        ID="u",
        health="Healthy",
        topology=deviceplugin_pb2.TopologyInfo(nodes=[deviceplugin_pb2.NUMANode(ID=1)]),
    )
    assert device.SerializeToString() == b"\x0a\x01u\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"
