"""CPU flags by the names that node labels have for them.

The kernel shows flags in /proc/cpuinfo under its own names; labels carry the names of the CPUID library that node
feature discovery uses (github.com/klauspost/cpuid). Only flags that the kernel reports are available here. The missing
ones are few: flags of the firmware and hypervisor, and flags that the kernel itself switched off, which no program can
use anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# Kernel's name -> label's name, where upper case alone does not do.
_RENAMED: Final = {
    "3dnow": "AMD3DNOW",
    "3dnowext": "AMD3DNOWEXT",
    "aes": "AESNI",
    "amd_ppin": "PPIN",
    "amx_bf16": "AMXBF16",
    "amx_complex": "AMXCOMPLEX",
    "amx_fp16": "AMXFP16",
    "amx_int8": "AMXINT8",
    "amx_tile": "AMXTILE",
    "arch_capabilities": "IA32_ARCH_CAP",
    "avx_ifma": "AVXIFMA",
    "avx_ne_convert": "AVXNECONVERT",
    "avx_vnni": "AVXVNNI",
    "avx_vnni_int16": "AVXVNNIINT16",
    "avx_vnni_int8": "AVXVNNIINT8",
    "avx512_bf16": "AVX512BF16",
    "avx512_bitalg": "AVX512BITALG",
    "avx512_fp16": "AVX512FP16",
    "avx512_vbmi2": "AVX512VBMI2",
    "avx512_vnni": "AVX512VNNI",
    "avx512_vp2intersect": "AVX512VP2INTERSECT",
    "avx512_vpopcntdq": "AVX512VPOPCNTDQ",
    "core_capabilities": "IA32_CORE_CAP",
    "cpb": "CPBOOST",
    "cx8": "CMPXCHG8",
    "decodeassists": "SVMDA",
    "flushbyasid": "SVMFBASID",
    "fma": "FMA3",
    "fpu": "X87",
    "fsrc": "CMPSB_SCADBS_SHORT",
    "fsrs": "STOSB_SHORT",
    "fxsr_opt": "FXSROPT",
    "fzrm": "MOVSB_ZL",
    "ibt": "CETIBT",
    "lahf_lm": "LAHF",
    "lbrv": "LBRVIRT",
    "npt": "SVMNP",
    "nrip_save": "NRIPS",
    "overflow_recov": "MCAOVERFLOW",
    "pausefilter": "SVMPF",
    "pfthreshold": "SVMPFT",
    "sep": "SYSEE",
    "sha_ni": "SHA",
    "sm3": "SM3_X86",
    "sm4": "SM4_X86",
    "ssbd": "SPEC_CTRL_SSBD",
    "svm_lock": "SVML",
    "topoext": "TOPEXT",
    "tsc_scale": "TSCRATEMSR",
    "user_shstk": "CETSS",
    "vmcb_clean": "VMCBCLEAN",
}

# Those that every machine has, or that say nothing by themselves: features, but no labels by default.
_COMMON: Final = {
    "abm": "LZCNT",
    "bmi1": "BMI1",
    "bmi2": "BMI2",
    "cmov": "CMOV",
    "cx16": "CX16",
    "erms": "ERMS",
    "f16c": "F16C",
    "ht": "HTT",
    "mmx": "MMX",
    "mmxext": "MMXEXT",
    "nx": "NX",
    "pclmulqdq": "CLMUL",
    "pni": "SSE3",
    "popcnt": "POPCNT",
    "rdrand": "RDRAND",
    "rdseed": "RDSEED",
    "rdtscp": "RDTSCP",
    "sgx": "SGX",
    "sgx_lc": "SGXLC",
    "sse": "SSE",
    "sse2": "SSE2",
    "sse4_1": "SSE4",
    "sse4_2": "SSE42",
    "ssse3": "SSSE3",
    "tdx_guest": "TDX_GUEST",
}
UNLABELLED: Final = frozenset(_COMMON.values())

# Features that each level of the x86-64 psABI adds to the one below, in the kernel's names.
_LEVELS: Final = (
    "cmov cx8 fpu fxsr lm mmx sse sse2 syscall",
    "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3",
    "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "avx512bw avx512cd avx512dq avx512f avx512vl",
)

# Those where it does.
_SAME: Final = frozenset(
    """adx avx avx2 avx512bw avx512cd avx512dq avx512er avx512f avx512ifma avx512pf avx512vbmi avx512vl cldemote clzero
    cmpccxadd cppc enqcmd flush_l1d fma4 fsrm fxsr gfni hle hreset hypervisor ibpb ibrs ibs invlpgb lam md_clear movbe
    movdir64b movdiri mpx osxsave pconfig rdpru rtm rtm_always_abort serialize sev sev_es sev_snp sme sse4a stibp succor
    svm syscall tbm tme tsxldtrk vaes vmx vpclmulqdq waitpkg wbnoinvd wrmsrns xgetbv1 xop xsave xsavec xsaveopt
    xsaves""".split()  # noqa: SIM905 - a paragraph reads better than sixty lines
)

# A flag that the library reads off another one's bit, or that the kernel implies.
_IMPLIED: Final = {"sse": "FXSROPT", "xsave": "OSXSAVE"}


def feature_names(flags: Iterable[str], *, arm: bool = False) -> frozenset[str]:
    """The names of the kernel's flags, and the levels X86_64_V1 to V4 that they make up.

    Those in UNLABELLED, which every machine has, become no labels by default. Arm's names are the kernel's, in upper
    case.
    """
    present = frozenset(flags)
    if arm:
        return frozenset(flag.upper() for flag in present)
    found = set()
    for flag in present:
        if name := _RENAMED.get(flag) or _COMMON.get(flag):
            found.add(name)
        elif flag in _SAME:
            found.add(flag.upper())
        if flag in _IMPLIED:
            found.add(_IMPLIED[flag])
    for level, wanted in enumerate(_LEVELS, start=1):
        if not present.issuperset(wanted.split()):
            break
        found.add(f"X86_64_V{level}")
    return frozenset(found)
