#!/usr/bin/env bash
# Tests `netcl serve` with other programs: the clients `openai`, `ollama`, `litellm` and `instructor`, and its pages in headless Chromium.
#
#     tools/serve_check.sh NETCL [MODEL]
#
# MODEL is a folder or file with a chat template. By default, it is a small model from the folder next to the repository, or one that is trained here,
# with a template that supports function calls. CHROMIUM is a browser [default: Playwright's own, which is downloaded]; SCREENSHOTS is a folder for
# pictures; AXE is axe-core's axe.min.js.
set -euo pipefail
netcl=$(realpath "$1")
cd "$(dirname "$0")/.."
python=$(tools/serve_python.sh all)
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

model=${2:-}
if [ -z "$model" ]; then
  model=$work/model data=../shared/data/models/stories260K/hf
  if [ -d "$data" ]; then
    cp -r "$data" "$model"
  else
    "$python" - "$work/text.txt" <<'PY'
import sys
letters = "".join(map(chr, range(32, 127)))
open(sys.argv[1], "w", encoding="ascii").writelines(f"{i} {letters}\nassistant: The cat sat.\n" for i in range(300))
PY
    # Large enough that the test can stop an answer before it ends.
    "$netcl" train --preset char-cpu --layers 4 --heads 4 --width 256 --context 512 --batch 2 --warmup 5 --steps 20 --eval-batches 2 --sample-every 0 \
      --vocab 128 --data "$work/text.txt" --out "$work/run" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    cp -r "$work"/run/checkpoints/step-* "$model"
    "$python" - "$model/tokenizer.json" <<'PY'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    tokenizer = json.load(file)
flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
tokenizer["added_tokens"] = [{"id": 120, "content": "</s>", "special": True, **flags}]
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(tokenizer, file)
PY
  fi
  printf '%s' '{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>{"name": "n", "arguments": {}}</tool_call>{% endif %}' \
    '{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant:' >"$model/chat_template.jinja"
fi

"$netcl" serve -m "$model" --port 0 >"$work/address" 2>"$work/log" &
server=$!
for _ in $(seq 300); do
  kill -0 "$server" 2>/dev/null || { cat "$work/log"; exit 1; }
  url=$(head -n 1 "$work/address")
  if [ -n "$url" ] && "$python" -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1] + "/ready")' "$url" 2>/dev/null; then break; fi
  sleep 0.2
done
"$python" tools/serve_clients.py "$url" || { cat "$work/log"; exit 1; }
kill "$server"
wait "$server"
server=

if [ -z "${CHROMIUM:-}" ]; then
  "$python" -m playwright install chromium >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "tools/serve_check.sh: no browser was found; set CHROMIUM" >&2; exit 1; }
fi
"$python" tools/serve_page_check.py --netcl "$netcl" --model "$model" ${CHROMIUM:+--chromium "$CHROMIUM"} ${SCREENSHOTS:+--screenshots "$SCREENSHOTS"} ${AXE:+--axe "$AXE"}
