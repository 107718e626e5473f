"""The scripts by which shells complete commands, and the answers that these ask for.

Click knows what can stand where. Its own scripts cut a value at a comma and do not know `--op=su`, and its way to find
the words takes `:` and `=` for words of their own in bash. So the scripts here send the line up to the cursor, and
get a line for each offer: what kind it is, the word, and perhaps what it means.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from mpired.cli.messages import show

_ASKS, _LINE = "_MPIRED_COMPLETE", "_MPIRED_LINE"


class _Shell(ShellComplete):
    """A shell."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words of the line, and what of the one at the cursor there is."""
        *words, begun = split_arg_string(f"{os.environ[_LINE]}|")  # so that the last word is never missing
        return words[1:], begun[:-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the offers; all words are the context's object, for those that look at files."""
        self.ctx_args["obj"] = tuple(args)
        try:
            items = super().get_completions(args, incomplete)
        except click.UsageError:  # in a word before
            return []
        return [item for item in items if str(item.value).isprintable()]

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return the line for an offer."""
        return "\t".join([item.type, item.value, *([" ".join(item.help.split())] if item.help else [])])


class _Bash(_Shell):
    name: ClassVar[str] = "bash"
    # What bash replaces begins after the last `=` or `:` of the word, or behind the quote that begins it.
    source_template: ClassVar[str] = r"""
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} kind value
    local before=${line##*[[:space:]]}
    before=${before%%"$2"}
    [[ $before == --*=* ]] && before=${before#*=}
    local quote=${before:0:1} open
    COMPREPLY=()
    while IFS=$'\t' read -r kind value _; do
        case $kind in
        file) compopt -o default ;;
        directory) compopt -o dirnames ;;
        *)
            [[ $kind == part ]] && compopt -o nospace
            case $quote in
            \') value=${value//\'/\'\\\'\'} ;;
            \") value=$(printf %%s "$value" | sed 's/[\\"$`]/\\&/g') ;;
            *) printf -v value %%q "$value" ;;
            esac
            COMPREPLY+=("${value#"$before"}")
            # Bash would end the quote behind a part that is the only one.
            [[ $kind == part && $quote == [\'\"] ]] && open=1
            ;;
        esac
    done < <(%(complete_var)s=bash_complete _MPIRED_LINE=$line "${1/#\~\//$HOME/}" 2>/dev/null)
    [[ $open && ${#COMPREPLY[@]} == 1 ]] && COMPREPLY+=("${COMPREPLY[0]}...")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Zsh(_Shell):
    name: ClassVar[str] = "zsh"
    source_template: ClassVar[str] = r"""#compdef %(prog_name)s
%(complete_func)s() {
    local line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX" kind value help
    local -a values shown parts paths
    [[ $PREFIX == --*=* ]] && compset -P 1 '*='
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            (file) paths=(-f) ;;
            (directory) paths=(-/) ;;
            (part) parts+=("$value") ;;
            (*) values+=("$value"); shown+=("$value${help:+  -- $help}") ;;
        esac
    done < <(%(complete_var)s=zsh_complete _MPIRED_LINE=$line ${~${(Q)words[1]}} 2>/dev/null)
    (( $#paths )) && _path_files $paths
    (( $#parts )) && compadd -S '' -a parts
    (( $#values )) && compadd -l -V %(prog_name)s -d shown -a values
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""


class _Fish(_Shell):
    name: ClassVar[str] = "fish"
    source_template: ClassVar[str] = r"""function %(complete_func)s
    set -l line (commandline -cp | string collect)
    set -l word (commandline -ct | string collect)
    set -l before (string match -r -- '^--[^=]*=' $word | string collect)
    set -l begun (string replace -- "$before" '' $word | string collect)
    set -l offers (env %(complete_var)s=fish_complete _MPIRED_LINE="$line" %(prog_name)s 2>/dev/null)
    # Fish would put a space behind a part that is the only one.
    if test (count $offers) -eq 1
        and string match -q 'part*' -- $offers[1]
        set -a offers "$offers[1]..."
    end
    for offer in $offers
        set -l parts (string split -m 1 \t -- $offer)
        switch $parts[1]
            case file
                printf "$before%%s\n" (__fish_complete_path "$begun")
            case directory
                printf "$before%%s\n" (__fish_complete_directories "$begun" '')
            case '*'
                echo "$before$parts[2]"
        end
    end
end
complete --command %(prog_name)s --no-files --keep-order --arguments '(%(complete_func)s)'
"""


SHELLS: dict[str, type[_Shell]] = {each.name: each for each in (_Bash, _Zsh, _Fish)}
"""The shells, by name."""


def script(cli: click.Command, shell: str) -> str:
    """Return the script of a shell."""
    return SHELLS[shell](cli, {}, "mpired", _ASKS).source().strip("\n")


def answer(cli: click.Command, asked: str) -> int:
    """Print what a shell asks for, `SHELL_source` or `SHELL_complete`; return 1 if there is no such thing."""
    shell, _, what = asked.partition("_")
    if shell not in SHELLS or what not in {"source", "complete"}:
        return 1
    text = script(cli, shell) if what == "source" else SHELLS[shell](cli, {}, "mpired", _ASKS).complete()
    if text:
        show(text)
    return 0
