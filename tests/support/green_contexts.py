"""Calls that programs of tests make green contexts with, on the driver API; they need `call` and ctypes' names."""

from __future__ import annotations

from typing import Final

GREEN: Final = """
class Resource(ctypes.Structure):
    _fields_ = [("type", c_int), ("padding", ctypes.c_ubyte * 92), ("count", c_uint), ("more", ctypes.c_ubyte * 36),
                ("next", c_void_p)]

def device_resource():
    found = Resource()
    call("cuDeviceGetDevResource", 0, byref(found), 1)
    return found

def descriptor(multiprocessors):
    part, count, whole, made = Resource(), c_uint(1), device_resource(), c_void_p()
    call("cuDevSmResourceSplitByCount", byref(part), byref(count), byref(whole), None, 0, multiprocessors)
    call("cuDevResourceGenerateDesc", byref(made), byref(part), 1)
    return made

def green_context(multiprocessors):
    green, context = c_void_p(), c_void_p()
    call("cuGreenCtxCreate", byref(green), descriptor(multiprocessors), 0, 1)
    call("cuCtxFromGreenCtx", byref(context), green)
    return green, context

def green_stream(green):
    stream = c_void_p()
    call("cuGreenCtxStreamCreate", byref(stream), green, 1, 0)
    return stream
"""
