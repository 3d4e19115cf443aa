"""The rules of `check`, and how they are put together to a verdict. Sees facts only: no torch, no network."""

from headscope.checks.rules.judgment import judge
from headscope.checks.rules.rule import every_rule, rules_on_reports
from headscope.checks.rules.selection import Ignore, Selection, named_in, select

__all__ = ["Ignore", "Selection", "every_rule", "judge", "named_in", "rules_on_reports", "select"]
