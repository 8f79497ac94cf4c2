#!/usr/bin/env python3
"""Writes tests/goldens/sft: masks of conversations, and a training run on conversations, as transformers and PyTorch compute them.

    python3 tools/golden_sft.py     # needs torch, transformers and the test data (NETCL_TEST_DATA), no GPU

    masks.json   tokenizer, template (a file of the test data, or its text), messages → number of tokens, and position and ids of each run of
                 tokens of an answer. Templates with generation blocks: return_assistant_tokens_mask of apply_chat_template. Others: an answer begins
                 where the conversation before it ends. It ends where the conversation up to it ends. If one of these is not the beginning of
                 the whole text, the case is `unclear`.
    run.json     conversations, template, losses and gradient norms of AdamW steps on stories260K. Each step has all conversations; its loss is the
                 sum over the tokens of answers divided by their number.
"""
import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("NETCL_TEST_DATA", ROOT.parent / "shared/data"))
OUT = ROOT / "tests/goldens/sft"
STORIES = "models/stories260K/hf"
GPT2 = "tokenizers/gpt2"

# Turns in words, the answer and its end token in a generation block.
BLOCKS = {
    "lines": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}Answer: {% generation %}{{ m.content }}{{ eos_token }}"
             "{% endgeneration %}\n{% else %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}Answer: {% endif %}",
    "trimmed": "{%- for m in messages -%}\n  {%- if m.role == 'assistant' -%}\n    {{- '<a>' -}}\n    {%- generation -%}\n"
               "    {{- m.content | trim -}}\n    {{- eos_token -}}\n    {%- endgeneration -%}\n  {%- else -%}\n"
               "    {{- '<' + m.role + '>' + m.content + '\\n' -}}\n  {%- endif -%}\n{%- endfor -%}",
    "newlines": "{% for m in messages %}\n[{{ m.role }}]\n{% if m.role == 'assistant' %}\n{% generation %}\n{{ m.content }}\n{% endgeneration %}\n"
                "{% else %}\n{{ m.content }}\n{% endif %}\n{% endfor %}\n",
}


def say(*contents, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    roles = ["user", "assistant"]
    return messages + [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


CONVERSATIONS = {
    "one": say("Who is there?", "It is a little cat."),
    "system": say("Tell me a story.", "Once upon a time there was a dog.", system="You tell stories."),
    "three": say("Hi!", "Hello.", "What is your name?", "My name is Tim, the bear.", "Good night", "Sleep well.\n\nBye!"),
    "spaces": say("  two spaces  ", "\n  a line\n\n  and another \n", "ok", " yes"),
    "unicode": say("Größe? 🦀 日本語", "Straße → 日本 🦀🦀", "é", "naïve café"),
    "thinking": say("Count.", "<think>\nOne, two.\n</think>\n\nThree."),
    "open": say("A question", "An answer", "and another question"),
    "same": say("yes", "yes", "yes", "yes"),
}
RECORDS = [
    ("Who is in the garden?", "A big red dog is in the garden."),
    ("What does Tim like?", "Tim likes to play with his ball in the park."),
    ("Is it cold?", "Yes."),
    ("Where is the cat?", "The cat is under the bed. It is asleep."),
    ("Tell me about Lily.", "Lily is a little girl. She has a toy car and a blue hat."),
    ("Why is the bird sad?", "The bird can not find her nest."),
    ("What is for dinner?", "Soup and bread."),
    ("Who made the cake?", "Mom made the cake. It was sweet, and everyone was happy."),
    ("Can frogs jump?", "Yes, frogs can jump very high."),
    ("What did Ben see?", "Ben saw a boat on the lake."),
    ("Is the sun hot?", "The sun is hot and bright."),
    ("How old is Sue?", "Sue is three years old."),
]
RUN = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "clip": 1.0, "steps": 10, "batch": 4, "grad_accum": 3}


def tokenizer_of(name):
    if name == GPT2:
        path = DATA / GPT2 / "tokenizer.json"
        return PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    return AutoTokenizer.from_pretrained(DATA / name)


def render(tokenizer, template, messages, **more):
    # The date of Llama's template, which is otherwise today's.
    return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, date_string="26 Jul 2024", **more)


def runs(ids, mask):
    """Returns the number of tokens, and each run of masked ones: position and ids."""
    answers = []
    for at, (token, masked) in enumerate(zip(ids, mask)):
        if masked and (at == 0 or not mask[at - 1]):
            answers.append([at, []])
        if masked:
            answers[-1][1].append(token)
    return {"tokens": len(ids), "answers": answers}


def by_prefix(tokenizer, template, messages):
    text = render(tokenizer, template, messages)
    encoded = tokenizer(text, add_special_tokens=False)
    mask = [0] * len(encoded["input_ids"])
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(tokenizer, template, messages[:i], add_generation_prompt=True)
        whole = render(tokenizer, template, messages[:i + 1])
        if not text.startswith(whole):
            whole = whole.removesuffix(tokenizer.eos_token)
        if not text.startswith(before) or not text.startswith(whole) or len(whole) <= len(before):
            return {"unclear": True}
        tokens = [encoded.char_to_token(at) for at in range(len(before), len(whole))]
        tokens = [token for token in tokens if token is not None]
        for token in range(tokens[0], tokens[-1] + 1):
            mask[token] = 1
    return runs(encoded["input_ids"], mask)


def masks():
    cases = []
    for name in (STORIES, GPT2):
        tokenizer = tokenizer_of(name)
        for template, text in BLOCKS.items():
            for conversation, messages in CONVERSATIONS.items():
                made = tokenizer.apply_chat_template(messages, chat_template=text, return_dict=True, return_assistant_tokens_mask=True)
                cases.append({"tokenizer": name, "template": text, "of": f"{template} {conversation}", "messages": messages}
                             | runs(made["input_ids"], made["assistant_masks"]))
        for path in sorted((DATA / "chat-templates").glob("*.jinja")):
            for conversation, messages in CONVERSATIONS.items():
                case = {"tokenizer": name, "file": f"chat-templates/{path.name}", "of": f"{path.stem} {conversation}", "messages": messages}
                try:
                    cases.append(case | by_prefix(tokenizer, path.read_text(), messages))
                except Exception as error:  # The template refuses the conversation.
                    cases.append(case | {"error": str(error)})
    return cases


def run():
    template, tokenizer = BLOCKS["lines"], tokenizer_of(STORIES)
    model = AutoModelForCausalLM.from_pretrained(DATA / STORIES, dtype=torch.float64, attn_implementation="eager")
    rows = []
    for question, answer in RECORDS:
        made = tokenizer.apply_chat_template(say(question, answer), chat_template=template, return_dict=True, return_assistant_tokens_mask=True)
        rows.append((made["input_ids"], made["assistant_masks"]))
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([list(ids) + [0] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([[i if m else -100 for i, m in zip(ids, mask)] + [-100] * (longest - len(ids)) for ids, mask in rows])
    count = int((labels[:, 1:] != -100).sum())
    optimizer = torch.optim.AdamW(model.parameters(), lr=RUN["lr"], betas=RUN["betas"], eps=RUN["eps"], weight_decay=0.0)
    losses, norms = [], []
    for _ in range(RUN["steps"]):
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), RUN["clip"])))
        optimizer.step()
        losses.append(float(loss.detach()))
    return RUN | {"template": template, "records": [say(*record) for record in RECORDS], "trained_tokens": count, "longest": longest,
                  "loss": losses, "norm": norms}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    all_masks = masks()
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in all_masks)
    (OUT / "masks.json").write_text(f"[\n{lines}\n]\n")
    (OUT / "run.json").write_text(json.dumps(run(), indent=1) + "\n")
    kinds = [next(key for key in ("unclear", "error", "answers") if key in case) for case in all_masks]
    print({kind: kinds.count(kind) for kind in set(kinds)})


if __name__ == "__main__":
    main()
