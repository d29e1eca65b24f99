"""CPU flags by the names that node labels have for them.

The kernel shows flags in /proc/cpuinfo under its own names; labels carry the names of the CPUID library that node
feature discovery uses (github.com/klauspost/cpuid). Only what the kernel shows can be told here, which leaves out few:
flags of the firmware and hypervisor, and those the kernel itself switched off, which nobody can use anyway.
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


def label_names(flags: Iterable[str], *, arm: bool = False) -> frozenset[str]:
    """The label names of the kernel's flags.

    Flags that node feature discovery leaves out by default (MMX, SSE to SSE4.2, NX, CX16, RDRAND and the like, which
    every machine has) are left out here too, by not being in the tables. Arm's names are the kernel's, in upper case.
    """
    if arm:
        return frozenset(flag.upper() for flag in flags)
    found = set()
    for flag in flags:
        if flag in _RENAMED:
            found.add(_RENAMED[flag])
        elif flag in _SAME:
            found.add(flag.upper())
        if flag in _IMPLIED:
            found.add(_IMPLIED[flag])
    return frozenset(found)
