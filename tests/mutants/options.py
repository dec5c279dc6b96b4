"""Mutants of options: what counts, what is shown, and what is refused."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CONFIG = "tests/unit/cli/test_command_config.py::"
_FILE = "coopconsume/cli/command_config.py"

OPTIONS = [
    Mutant(
        "file-before-command-line",
        "The command line counts before a file of options.",
        _FILE,
        "if key not in self._given and uses(option.name):",
        "if uses(option.name):",
        (_CONFIG + "test_the_command_line_counts_before_the_file",),
    ),
    Mutant(
        "secrets-of-a-file-shown",
        "The options that count are printed with their secrets starred.",
        "coopconsume/option_names.py",
        "or is_harmless(setting)",
        "or is_harmless(setting) or setting",
        (_CONFIG + "test_secrets_are_starred",),
    ),
    Mutant(
        "unknown-option-of-a-file-ignored",
        "A file with an option that nobody knows is refused.",
        _FILE,
        "    check_names({full: value}, _BY_NAME, _LISTED)\n",
        "    if full.lower() not in _BY_NAME:\n        return\n",
        (_CONFIG + "test_all_wrong_lines_are_named_with_file_and_line",),
    ),
    Mutant(
        "settings-without-effect-reach-clients",
        "A setting of clients that has no effect reaches no client.",
        "coopconsume/options.py",
        "            del kafka[name]\n",
        "            kafka[name]\n",
        ("tests/unit/test_options.py::test_a_setting_without_effect_reaches_no_client",),
    ),
]
