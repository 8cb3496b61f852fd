"""Writes spec/reference/tokenizers/chat.json: chat templates, and what Transformers' Jinja makes of them.

  python3 spec/generators/gen_chat_reference.py [RANDOM [SEED]] > spec/reference/tokenizers/chat.json

RANDOM is how many templates chat_grammar.py makes beside those of chat_cases.py; default 400.
"""
import json
import sys

import chat_cases
import chat_families
import chat_grammar
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template


def rendered(template, variables):
    """The text, or None where Jinja raises or shows an address."""
    try:
        text = _compile_jinja_template(template).render(tools=None, documents=None, **variables)
    except Exception:
        return None
    return None if " at 0x" in text or "<class " in text else text


def chats():
    for name, template in chat_families.FAMILIES.items():
        for number, conversation in enumerate(chat_families.CONVERSATIONS):
            for prompt in (False, True):
                given = {"messages": conversation["messages"], "tools": conversation.get("tools"),
                         "documents": conversation.get("documents"), "add_generation_prompt": prompt,
                         **chat_families.TOKENS, **conversation.get("variables", {})}
                try:
                    text = render_jinja_template([given.pop("messages")], chat_template=template, **given)[0][0]
                except Exception:
                    text = None
                yield {"family": name, "conversation": number + 1, "prompt": prompt, "text": text}


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    cases = [[group, template, rendered(template, chat_cases.VARIABLES)]
             for group, templates in chat_cases.CASES.items() for template in templates]
    random = []
    for template in chat_grammar.templates(count, seed):
        random.append([template, rendered(template, chat_cases.VARIABLES)])
    json.dump({"variables": chat_cases.VARIABLES, "cases": cases, "random": random, "tokens": chat_families.TOKENS,
               "families": chat_families.FAMILIES, "conversations": chat_families.CONVERSATIONS,
               "chats": list(chats())},
              sys.stdout, ensure_ascii=False, indent=0, separators=(",", ":"))
    print()


main()
