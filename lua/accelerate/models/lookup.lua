--- Prompt lookup: several tokens with one reading of the weights. Tokens that followed the last
--- ones earlier in the sequence are drafts; one pass computes the scores behind all of them, and
--- those that generate would have picked itself are kept.
---
--- The tokens are those of generation without drafts. On the CPU the scores are, too, bit for bit:
--- a row of a product of few rows does not depend on the others, and attention takes the positions
--- of a pass one by one.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

-- Rows of a pass, at most: products of more are computed in another order (AX_NARROW in
-- kernels/cpu/gemm.h).
local ROWS = 8

--- Raises for options that do not go together with drafts.
---@param step table
---@param o table
function M.check(step, o)
  local rows = step.ids:size(1)
  if o.num_beams > 1 then
    fail("generate: prompt_lookup_num_tokens needs num_beams = 1, got %d", o.num_beams)
  elseif rows > 1 then
    fail("generate: prompt_lookup_num_tokens is for one row of tokens, got %d", rows)
  elseif step.padding then
    fail("generate: prompt_lookup_num_tokens needs a prompt without padding")
  elseif not o.use_cache then
    fail("generate: prompt_lookup_num_tokens needs use_cache = true")
  elseif not step.verify then
    fail("generate: prompt_lookup_num_tokens is for decoders whose positions do not turn by the length " ..
      "of the sequence")
  end
end

local function same(list, a, b, size)
  for i = 0, size - 1 do
    if list[a + i] ~= list[b + i] then return false end
  end
  return true
end

--- Returns up to `most` tokens that followed the last `size` ones of the list where these occurred
--- first, or fewer of the last ones; none where the last one is new.
---@param list integer[]
---@param most integer
---@param size integer
---@return integer[]
function M.drafts(list, most, size)
  local n = #list
  for gram = math.min(size, n - 1), 1, -1 do
    for at = 1, n - gram do
      if same(list, at, n - gram + 1, gram) then
        local found = {}
        for i = at + gram, math.min(at + gram + most - 1, n) do found[#found + 1] = list[i] end
        return found
      end
    end
  end
  return {}
end

--- Generates the tokens of one row.
---@param step table
---@param o table options of generate
---@param limit integer
---@param process accelerate.models.Processor
---@param stop accelerate.models.Stopping
---@return { sequences: accelerate.Tensor }
function M.generate(step, o, limit, process, stop)
  local device = step.ids.device
  local function ids_of(tokens) return core.tensor({ tokens }, { dtype = "int64", device = device }) end
  local list, count, done = step.ids:totable()[1], 0, false

  -- Adds the token that scores (1, V) give.
  local function add(scores)
    local token = process:pick(process:process(scores)):item()
    local ended = stop:ends(token, list)
    list[#list + 1], count = token, count + 1
    process:saw(ids_of { token }, { token })
    local enough = o.stream and o.stream({ token }, count)
    done = enough or ended or count == limit or stop:late()
    return token
  end

  add(step.scores(step.ids))
  while not done do
    local most = math.min(o.prompt_lookup_num_tokens, limit - count - 1, ROWS - 1)
    local drafts = most > 0 and M.drafts(list, most, o.max_matching_ngram_size) or {}
    local scores, kept = step.verify(ids_of { list[#list], unpack(drafts) }), 0
    repeat
      kept = kept + 1
      local token = add(scores:narrow(1, kept, 1))
    until done or token ~= drafts[kept]
    step.rewind(#drafts + 1 - kept)
  end
  return { sequences = ids_of(list) }
end

return M
