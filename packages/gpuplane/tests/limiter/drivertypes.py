"""Structs of the driver API for programs of these tests; ways to allocate, each with its result and what frees it."""

TYPES = """
class Pool(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("where", c_int), ("id", c_int), ("security", c_void_p),
                ("most", c_size_t), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54)]
class Memory(ctypes.Structure):
    _fields_ = [("pool", Pool), ("access", c_void_p), ("count", c_size_t), ("size", c_size_t), ("address", c_uint64)]
class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("where", c_int), ("id", c_int), ("security", c_void_p),
                ("flags", ctypes.c_ubyte * 8)]
class Array(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint)]
class Array3D(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int), ("channels", c_uint),
                ("flags", c_uint)]
class Config(ctypes.Structure):
    _fields_ = [("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint), ("stream", c_void_p),
                ("attributes", c_void_p), ("count", c_uint)]

def plain(size):
    address = c_uint64()
    return code_of("cuMemAlloc_v2", byref(address), c_size_t(size)), lambda: call("cuMemFree_v2", address)

def pitch(size):
    address, row = c_uint64(), c_size_t()
    code = code_of("cuMemAllocPitch_v2", byref(address), byref(row), c_size_t(65536), c_size_t(size // 65536), 4)
    return code, lambda: call("cuMemFree_v2", address)

def managed(size):
    address = c_uint64()
    return code_of("cuMemAllocManaged", byref(address), c_size_t(size), 1), lambda: call("cuMemFree_v2", address)

def freed_async(suffix, address):
    call("cuMemFreeAsync" + suffix, address, None)
    call("cuStreamSynchronize", None)

def stream_ordered(size, suffix=""):
    address = c_uint64()
    code = code_of("cuMemAllocAsync" + suffix, byref(address), c_size_t(size), None)
    return code, lambda: freed_async(suffix, address)

def stream_ordered_ptsz(size):
    return stream_ordered(size, "_ptsz")

def stream_ordered_plain_free(size):
    address = c_uint64()
    return code_of("cuMemAllocAsync", byref(address), c_size_t(size), None), lambda: call("cuMemFree_v2", address)

def own_pool():
    pool, wanted = c_void_p(), Pool(type=1, where=1)
    call("cuMemPoolCreate", byref(pool), byref(wanted))
    return pool

pools = []
def from_pool(size, suffix=""):
    if not pools:
        pools.append(own_pool())
    address = c_uint64()
    code = code_of("cuMemAllocFromPoolAsync" + suffix, byref(address), c_size_t(size), pools[0], None)
    return code, lambda: freed_async(suffix, address)

def from_pool_ptsz(size):
    return from_pool(size, "_ptsz")

def physical(size):
    handle, wanted = c_uint64(), Properties(1, 0, 1, 0)
    code = code_of("cuMemCreate", byref(handle), c_size_t(size), byref(wanted), c_uint64(0))
    return code, lambda: call("cuMemRelease", handle)

def array(size):
    handle = c_void_p()
    code = code_of("cuArrayCreate_v2", byref(handle), byref(Array(4096, size // 65536, 0x20, 4)))
    return code, lambda: call("cuArrayDestroy", handle)

def array3d(size):
    handle = c_void_p()
    code = code_of("cuArray3DCreate_v2", byref(handle), byref(Array3D(4096, 16, size // 65536 // 16, 0x20, 4, 0)))
    return code, lambda: call("cuArrayDestroy", handle)

def mipmap(size):
    handle = c_void_p()
    wanted = Array3D(4096, size // 65536, 0, 0x20, 4, 0)
    code = code_of("cuMipmappedArrayCreate", byref(handle), byref(wanted), 1)
    return code, lambda: call("cuMipmappedArrayDestroy", handle)

def with_flags(graph, execution):
    call("cuGraphInstantiateWithFlags", execution, graph, c_uint64(0))

addresses = []  # of graphs' memory
def graph(size, instantiate=with_flags):
    handle, execution, wanted, node = c_void_p(), c_void_p(), Memory(size=size), c_void_p()
    wanted.pool.type = wanted.pool.where = 1
    call("cuGraphCreate", byref(handle), 0)
    call("cuGraphAddMemAllocNode", byref(node), handle, None, c_size_t(0), byref(wanted))
    instantiate(handle, byref(execution))
    addresses.append(c_uint64(wanted.address))
    def free():
        call("cuMemFree_v2", c_uint64(wanted.address))
        call("cuDeviceGraphMemTrim", 0)
    return code_of("cuGraphLaunch", execution, None), free

def captured(size):
    stream, handle, execution, address = c_void_p(), c_void_p(), c_void_p(), c_uint64()
    call("cuStreamCreate", byref(stream), 1)
    call("cuStreamBeginCapture_v2", stream, 0)
    call("cuMemAllocAsync", byref(address), c_size_t(size), stream)
    call("cuStreamEndCapture", stream, byref(handle))
    call("cuGraphInstantiateWithFlags", byref(execution), handle, c_uint64(0))
    def free():
        call("cuMemFreeAsync", address, stream)
        call("cuDeviceGraphMemTrim", 0)
    return code_of("cuGraphLaunch", execution, stream), free
"""

WAYS = (
    "plain",
    "pitch",
    "managed",
    "stream_ordered",
    "stream_ordered_ptsz",
    "stream_ordered_plain_free",
    "from_pool",
    "from_pool_ptsz",
    "physical",
    "array",
    "array3d",
    "mipmap",
    "graph",
    "captured",
)
