-- Tokenizing the library's own pages and Lua files, line by line in batches: with a byte-level BPE
-- of 8000 tokens that is trained on them, and with small WordPiece and unigram vocabularies; one
-- line of JSON.
-- The same work as peer/tokenizing.py.
--
--   accel-run bench/tokenizing.lua
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")
local tokenizers = require "accelerate.tokenizers"

local root = (arg[0]:match("^(.*)/bench/") or ".") .. "/"
local lines = {}
local pipe = io.popen(("cd '%s' && find docs lua -name '*.md' -o -name '*.lua' | LC_ALL=C sort"):format(root))
for path in pipe:lines() do
  for line in io.lines(root .. path) do
    if line:find("%S") then lines[#lines + 1] = line end
  end
end
pipe:close()

local function median_ms(tokenizer)
  local times = {}
  for i = 0, 3 do
    local began = common.now()
    for at = 1, #lines, 1000 do tokenizer:encode_batch({ unpack(lines, at, math.min(at + 999, #lines)) }) end
    if i > 0 then times[i] = common.now() - began end
  end
  return common.median(times) * 1e3
end

local began = common.now()
local bpe = tokenizers.train_bpe(lines, { vocab_size = 8000 })
local train_ms = (common.now() - began) * 1e3
common.emit { bpe_ms = median_ms(bpe), train_ms = train_ms,
  wordpiece_ms = median_ms(tokenizers.from_file(root .. "spec/reference/tokenizers/bert.json")),
  unigram_ms = median_ms(tokenizers.from_file(root .. "spec/reference/tokenizers/unigram.json")) }
