"""Audits: the worst-case accuracy under a suite of attacks, and flags where the attacks may have failed.

`audit` runs it, `AuditRunner` does the work. A flag is one function, decorated with `flag`, in `attack_flags` or
`probe_flags`; `FLAGS` holds the title and the advice of each.
"""

from advbnn.evaluation.audit import attack_flags as attack_flags
from advbnn.evaluation.audit import probe_flags as probe_flags
from advbnn.evaluation.audit.attack_suite import LEVELS as LEVELS
from advbnn.evaluation.audit.attack_suite import Level as Level
from advbnn.evaluation.audit.flags import FLAGS as FLAGS
from advbnn.evaluation.audit.flags import Flag as Flag
from advbnn.evaluation.audit.worst_case import Audit as Audit
