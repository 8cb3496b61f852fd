--- What decoders have in common: inputs, positions and masks, heads with their losses.

local core = require "accelerate.core"
local KeyValueCache = require("accelerate.models.cache").KeyValueCache
local generation = require "accelerate.models.generation"
local masks = require "accelerate.models.masks"
local pretrained = require "accelerate.models.pretrained"

local M = {}

--- Inputs of a decoder without a head.
M.INPUTS = {
  input_ids = { "tensor" },
  attention_mask = { "tensor", optional = true },
  position_ids = { "tensor", optional = true },
  cache = { "KeyValueCache", optional = true },
  output_hidden_states = { "boolean", default = false },
}

local WITH_LABELS = { labels = { "tensor", optional = true } }
for name, entry in next, M.INPUTS do WITH_LABELS[name] = entry end

--- Returns the attention of the last positions, each computed as if it came alone: their sums do
--- not depend on those behind them.
---@param q accelerate.Tensor (N, H, T, D)
---@param keys accelerate.Tensor (N, G, S, D), of these positions at the end
---@param values accelerate.Tensor
---@param attend fun(q: accelerate.Tensor, keys: accelerate.Tensor, values: accelerate.Tensor, past:
---  integer): accelerate.Tensor past: the positions before
---@return accelerate.Tensor
function M.one_by_one(q, keys, values, attend)
  local count, rows = q:size(3), {}
  local past = keys:size(3) - count
  for i = 1, count do
    rows[i] = attend(q:narrow(3, i, 1):contiguous(), keys:narrow(3, 1, past + i),
      values:narrow(3, 1, past + i), past + i - 1)
  end
  return core.cat(rows, 3)
end

--- Returns the positions of the new tokens (nil: those that follow the cached ones), the mask and
--- is_causal.
---@param o table inputs by name
---@param past integer
function M.layout(o, past)
  local ids = o.input_ids
  return o.position_ids, masks.causal(ids:size(2), past, o.attention_mask, ids.device)
end

--- Gives a class without a head its forward.
---@param Class table
function M.base(Class)
  --- `model(input_ids, opts)` or `model { input_ids = ... }`.
  ---@param inputs accelerate.Tensor|table input_ids int64 (batch, length), or all inputs by name
  ---@param opts? { attention_mask: accelerate.Tensor, position_ids: accelerate.Tensor, cache:
  ---  accelerate.models.KeyValueCache, output_hidden_states: boolean } attention_mask: (batch,
  ---  length), 0 for padding, with the cached positions before
  ---@return { last_hidden_state: accelerate.Tensor, hidden_states: accelerate.Tensor[]? }
  function Class:forward(inputs, opts)
    local o = pretrained.inputs(self, inputs, opts, M.INPUTS)
    return core.scope(function()
      local x, all = self:_hidden(o)
      return { last_hidden_state = x, hidden_states = all }
    end)
  end
end

-- labels[i] is the token at i; its score stands at i - 1.
local function shifted_loss(logits, labels)
  local length = labels:size(2)
  return pretrained.token_loss(logits:narrow(2, 1, length - 1), labels:narrow(2, 2, length - 1))
end

local function head(self, x) return self.lm_head(x) end

--- Gives a class the forward of a language model, and generate. Its parts are `self[base]` and
--- `self.lm_head`.
---@param Class table
---@param base string
---@param scores_of? fun(self: table, x: accelerate.Tensor): accelerate.Tensor default: lm_head
function M.causal_lm(Class, base, scores_of)
  scores_of = scores_of or head
  --- `model(input_ids, opts)` or `model { input_ids = ..., labels = ... }`: scores for the next
  --- token. labels: the ids themselves, -100 where no loss is wanted; they are shifted here.
  ---@return { loss: accelerate.Tensor?, logits: accelerate.Tensor, hidden_states:
  ---  accelerate.Tensor[]? } logits: (batch, length, vocab_size)
  function Class:forward(inputs, opts)
    local o = pretrained.inputs(self, inputs, opts, WITH_LABELS)
    return core.scope(function()
      local x, all = self._values[base]:_hidden(o)
      local logits = scores_of(self, x)
      return { loss = o.labels and shifted_loss(logits, o.labels), logits = logits, hidden_states = all }
    end)
  end

  -- Scores (N, vocab_size) of the last position alone, in float32.
  function Class:_next_scores(o)
    return core.scope(function()
      local x = self._values[base]:_hidden(o)
      return scores_of(self, x:select(2, x:size(2))):float()
    end)
  end

  -- Scores (T, vocab_size) of all positions of one row, in float32.
  function Class:_all_scores(o)
    return core.scope(function()
      return scores_of(self, self._values[base]:_hidden(o):squeeze(1)):float()
    end)
  end

  -- Do the angles of positions follow the length of the sequence?
  local function follows_length(self)
    local rotary = self._values[base]._values.rotary
    return self.renew_at or rotary and rotary.follow
  end

  -- What generate calls for one batch: scores of the token after the given ones, and reordering of
  -- its rows; scores behind each of several tokens, as if they came one by one, and taking back the
  -- last ones. padding: (N, T) of the prompt, or nil; opts.use_cache: false computes all positions
  -- at each call.
  function Class:_stepper(prompt, padding, capacity, _, opts)
    local cache, renew_at, seen = KeyValueCache { capacity = capacity }, self.renew_at, nil
    local cached = not opts or opts.use_cache ~= false
    local inputs = { cache = cached and cache or nil }
    local step = { ids = prompt, padding = padding }
    local function has_crossed(length)
      return renew_at and cache.length <= renew_at and length > renew_at
    end
    -- The ids to compute: the new ones, or all without a cache and where it ends with the call that
    -- goes beyond renew_at.
    local function renewed(ids)
      local first = not seen
      seen = seen and core.cat({ seen, ids }, 2) or ids
      if first or cached and not has_crossed(seen:size(2)) then return ids end
      if cached then cache = KeyValueCache { capacity = capacity } end
      inputs.cache = cached and cache or nil
      if padding then padding = core.cat({ padding, core.ones_like(ids):to(padding.dtype) }, 2) end
      return seen
    end
    function step.scores(ids)
      if renew_at or not cached then ids = renewed(ids) end
      if padding then
        if cache.length > 0 then
          padding = core.cat({ padding, core.ones_like(padding:narrow(2, 1, 1)) }, 2)
        end
        inputs.attention_mask = padding
        inputs.position_ids = masks.positions(padding):narrow(2, cache.length + 1, ids:size(2))
      end
      inputs.input_ids = ids
      return self:_next_scores(inputs)
    end
    function step.reorder(index)
      if cached then cache:reorder(index) end
      if seen then seen = seen:index_select(1, index) end
      if padding then padding = padding:index_select(1, index) end
    end
    if follows_length(self) then return step end
    function step.verify(ids)
      inputs.input_ids, cache.one_by_one = ids, true
      local scores = self:_all_scores(inputs)
      cache.one_by_one = false
      return scores
    end
    function step.rewind(count) cache.length = cache.length - count end
    return step
  end

  Class.generate = generation.generate
end

-- The place of each row's last token that is not pad_token_id, counted from 0; without a
-- pad_token_id, of the last token that the mask has.
local function last_token(self, o)
  local ids, pad = o.input_ids, self.config.pad_token_id
  local N, T = ids:size(1), ids:size(2)
  local real = pad and ids:ne(pad) or o.attention_mask and o.attention_mask:ne(0)
  if not real then return core.full({ N }, T - 1, { dtype = "int64", device = ids.device }) end
  local at = core.arange(T, { device = ids.device })
  return (real:long() * at):amax(2)
end

--- Gives a class the forward of a sequence classifier with `self.score`.
---@param Class table
---@param base string
function M.classifier(Class, base)
  --- `model { input_ids = ..., attention_mask = ..., labels = ... }`: scores of the classes at each
  --- row's last token.
  ---@return { loss: accelerate.Tensor?, logits: accelerate.Tensor, hidden_states:
  ---  accelerate.Tensor[]? } logits: (batch, num_labels)
  function Class:forward(inputs, opts)
    local o = pretrained.inputs(self, inputs, opts, WITH_LABELS)
    return core.scope(function()
      local x, all = self._values[base]:_hidden(o)
      local at = last_token(self, o):view(-1, 1, 1):expand(x:size(1), 1, x:size(3))
      local logits = self.score(x:gather(2, at):squeeze(2))
      local loss = o.labels and pretrained.class_loss(self.config, logits, o.labels)
      return { loss = loss, logits = logits, hidden_states = all }
    end)
  end
end

return M
