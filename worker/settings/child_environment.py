"""Environment of child processes that run other people's code, built from a list of what they need. Pure.

A deny list would pass every secret that is not on it (HF_TOKEN, AWS_SECRET_ACCESS_KEY). So a name is passed on when it
is listed here or by the operator, and never when it is a setting of the front. A name that matches a prefix and looks
like a secret (NVIDIA_API_KEY) is not listed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS"),
        *("LANG", "LANGUAGE", "TZ", "TZDIR", "TMPDIR", "TEMP", "TMP"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES", "VIRTUAL_ENV", "CONDA_PREFIX", "CC", "CXX", "CUDAHOSTCXX"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("TOKENIZERS_PARALLELISM", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"),
        *(
            "HF_ENDPOINT",
            "HF_DATASETS_CACHE",
            "TRANSFORMERS_CACHE",
            "TRANSFORMERS_OFFLINE",
            "DO_NOT_TRACK",
            "MPLBACKEND",
        ),
    }
)
PREFIXES = (
    *("LC_", "XDG_", "PYTHON", "MALLOC_", "THP_", "TORCH", "PYTORCH", "TRITON_", "NUMBA_"),
    *("CUDA_", "NVIDIA_", "CUBLAS", "CUDNN_", "NCCL_"),
    *("HIP_", "HSA_", "ROCR_", "ROCM_", "MIOPEN_", "AMD_", "GPU_", "ONEAPI_", "SYCL_", "ZE_"),
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "ONEDNN_", "DNNL_"),
)
PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
INSTALLERS = ("PIP_*", "UV_*", "GIT_*", "SSH_AUTH_SOCK")
"""Additional names for the operator's own commands that install packs."""

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


def listed_environment(
    environment: Mapping[str, str],
    extra: Sequence[str],
    settings: Collection[str],
    *,
    has_proxy_passwords: bool = False,
) -> dict[str, str]:
    """Return the part of `environment` that a child gets.

    `extra` are more names, `NAME*` for a prefix. `settings` are names, in upper case, that no child gets. A proxy's
    address with a password in it counts as a secret.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.upper() not in settings
        and (
            name in extra
            or any(name.startswith(pattern[:-1]) for pattern in extra if pattern.endswith("*"))
            or _is_listed(name)
            or (name.upper() in PROXIES and (has_proxy_passwords or not _has_password(value)))
        )
    }


def find_pattern_problem(pattern: str, settings: Collection[str]) -> str | None:
    """Return the problem of one of the operator's names; None where there is none."""
    if not PATTERN.fullmatch(pattern):
        return f"no name of a variable; got {pattern!r}, expected NAME or NAME*"
    if pattern.upper() in settings:
        return f"a setting of the worker, which no node pack may read; got {pattern!r}, expected another name"
    return None


def _is_listed(name: str) -> bool:
    return name in NAMES or (name.startswith(PREFIXES) and not SECRET.search(name))


def _has_password(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy if "://" in proxy else f"//{proxy}")
    except ValueError:
        return True
    return "@" in parts.netloc
