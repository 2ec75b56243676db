"""Find what is wrong with the mixed precision of a training program while it runs: `ampcheck.doctor`.

`session` watches PyTorch's calls and says which steps are observed, `kernels` looks at each kernel of such a step,
`training` at the order of calls, `findings` tells what was found under the rules of `ampcheck.tools.catalogue`.
"""

from ampcheck.tools.doctor.findings import Finding
from ampcheck.tools.doctor.session import Doctor, doctor
from ampcheck.tools.user_program import Enough

__all__ = ["Doctor", "Enough", "Finding", "doctor"]
