--- nn.MultiheadAttention, with PyTorch's parameters, masks and initialisation.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"
local init = require "accelerate.nn.initializers"
local Linear = require("accelerate.nn.linear").Linear

local linear, sdpa = core.linear, core.scaled_dot_product_attention

---@class accelerate.nn.MultiheadAttention : accelerate.nn.Module
---@field in_proj_weight accelerate.Tensor? (3 embed_dim, embed_dim): query, key, value; absent when
---  kdim or vdim differ
---@field q_proj_weight accelerate.Tensor? (embed_dim, embed_dim), k_proj_weight (.., kdim) and
---  v_proj_weight (.., vdim) then
---@field in_proj_bias accelerate.Tensor? (3 embed_dim)
---@field out_proj accelerate.nn.Linear
local MultiheadAttention = class("MultiheadAttention", Module)
MultiheadAttention._builtin = true

local SIZE = { "integer", min = 1 }
local OPTIONS = {
  dropout = { "number", default = 0, min = 0, max = 1 },
  bias = { "boolean", default = true },
  add_bias_kv = { "boolean", default = false },
  add_zero_attn = { "boolean", default = false },
  kdim = { "integer", min = 1, optional = true },
  vdim = { "integer", min = 1, optional = true },
  batch_first = { "boolean", default = false },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}

--- Attention with several heads: projections of query, key and value, scaled_dot_product_attention,
--- a projection of the result.
---@param embed_dim integer of query and result; a multiple of num_heads
---@param num_heads integer
---@param opts? { dropout: number, bias: boolean, add_bias_kv: boolean, add_zero_attn: boolean,
---  kdim: integer, vdim: integer, batch_first: boolean, dtype: string, device: string }
function MultiheadAttention:init(embed_dim, num_heads, opts)
  local o = options.check("MultiheadAttention", opts, OPTIONS)
  self.embed_dim = options.value("MultiheadAttention", "embed_dim", embed_dim, SIZE)
  self.num_heads = options.value("MultiheadAttention", "num_heads", num_heads, SIZE)
  if embed_dim % num_heads ~= 0 then
    options.fail("MultiheadAttention: embed_dim must be a multiple of num_heads, got %d and %d", embed_dim,
      num_heads)
  end
  self.head_dim = embed_dim / num_heads
  self.kdim, self.vdim = o.kdim or embed_dim, o.vdim or embed_dim
  self.dropout, self.batch_first, self.add_zero_attn = o.dropout, o.batch_first, o.add_zero_attn
  local place = { dtype = o.dtype, device = o.device }
  local function new(...) return parameter.empty({ ... }, place) end
  if self.kdim == embed_dim and self.vdim == embed_dim then
    self.in_proj_weight = new(3 * embed_dim, embed_dim)
  else
    self.q_proj_weight = new(embed_dim, embed_dim)
    self.k_proj_weight = new(embed_dim, self.kdim)
    self.v_proj_weight = new(embed_dim, self.vdim)
  end
  if o.bias then self.in_proj_bias = new(3 * embed_dim) end
  self.out_proj = Linear(embed_dim, embed_dim, { bias = o.bias, dtype = o.dtype, device = o.device })
  if o.add_bias_kv then
    self.bias_k = new(1, 1, embed_dim)
    self.bias_v = new(1, 1, embed_dim)
  end
  self:_reset_parameters()
end

--- Draws the parameters anew: projections Xavier uniform, biases 0.
function MultiheadAttention:_reset_parameters()
  for _, name in ipairs { "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight" } do
    if self[name] then init.xavier_uniform_(self[name]) end
  end
  if self.in_proj_bias then
    init.zeros_(self.in_proj_bias)
    init.zeros_(self.out_proj.bias)
  end
  if self.bias_k then
    init.xavier_normal_(self.bias_k)
    init.xavier_normal_(self.bias_v)
  end
end

-- ---- masks: in these, true (or -inf) hides a key

local function check_mask(name, mask)
  if not core.is_tensor(mask) or not (mask.dtype == "bool" or core._is_float(mask)) then
    error(("%s must be a bool tensor (true: hidden) or a floating one (added to the scores), got %s"):format(
      name, options.show(mask)), 0)
  end
end

local function check_shape(name, mask, ...)
  for _, shape in ipairs { ... } do
    if table.concat(mask.shape, " ") == table.concat(shape, " ") then return end
  end
  local wanted = {}
  for i, shape in ipairs { ... } do wanted[i] = ("[%s]"):format(table.concat(shape, ", ")) end
  error(("%s must have shape %s, got %s"):format(name, table.concat(wanted, " or "),
    lists.shape_text(mask)), 0)
end

local function additive(mask, dtype)
  if mask.dtype ~= "bool" then return mask:to(dtype) end
  return core.zeros(mask.shape, { dtype = dtype, device = mask.device }):masked_fill(mask, -math.huge)
end

-- Both masks as one that broadcasts over (N, H, L, S): bool when both are, else added; nil when
-- there is none.
local function joined(padding, attention, dtype)
  if not (padding and attention) then return padding or attention end
  if padding.dtype == "bool" and attention.dtype == "bool" then return core.logical_or(padding, attention) end
  return additive(padding, dtype) + additive(attention, dtype)
end

-- True above the diagonal.
local function above_diagonal(queries, keys, device)
  local q, k = core.arange(queries, { device = device }), core.arange(keys, { device = device })
  return core.gt(k, q:view(queries, 1))
end

-- `extra` more keys, which every query may see.
local function widened(mask, extra)
  if not mask then return nil end
  local shape = mask.shape
  shape[#shape] = extra
  return core.cat({ mask, core.zeros(shape, { dtype = mask.dtype, device = mask.device }) }, -1)
end

-- ---- forward

-- (N, L, E) -> (N, H, L, D)
local function heads(x, count)
  local shape = x.shape
  return x:reshape(shape[1], shape[2], count, -1):transpose(2, 3)
end

-- A third of a bias, or nil.
local function part(bias, at, size) return bias and bias:narrow(1, at * size + 1, size) end

-- The projections, as (N, L, E) each.
local function projected(v, query, key, value)
  local size, weight, bias = v.embed_dim, v.in_proj_weight, v.in_proj_bias
  if not weight then
    return linear(query, v.q_proj_weight, part(bias, 0, size)),
      linear(key, v.k_proj_weight, part(bias, 1, size)),
      linear(value, v.v_proj_weight, part(bias, 2, size))
  end
  if rawequal(key, value) then
    local both = linear(key, weight:narrow(1, size + 1, 2 * size), bias
      and bias:narrow(1, size + 1, 2 * size))
    return linear(query, weight:narrow(1, 1, size), part(bias, 0, size)), both:narrow(3, 1, size),
      both:narrow(3, size + 1, size)
  end
  return linear(query, weight:narrow(1, 1, size), part(bias, 0, size)),
    linear(key, weight:narrow(1, size + 1, size), part(bias, 1, size)),
    linear(value, weight:narrow(1, 2 * size + 1, size), part(bias, 2, size))
end

-- With the weights: softmax(q k^T / sqrt(D) + mask), dropped out, and their product with v.
local function with_weights(q, k, v, hidden, dropout)
  local scores = (q * q.shape[4] ^ -0.5):matmul(k:transpose(3, 4))
  if hidden then
    scores = hidden.dtype == "bool" and scores:masked_fill(hidden, -math.huge) or scores + hidden
  end
  local weights = core.dropout(scores:softmax(-1), dropout, dropout > 0)
  return weights:matmul(v), weights
end

local CALL = {
  key_padding_mask = { "tensor", optional = true },
  need_weights = { "boolean", default = true },
  attn_mask = { "tensor", optional = true },
  average_attn_weights = { "boolean", default = true },
  is_causal = { "boolean", default = false },
}
local ORDER = { "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal" }

local function forward(self, query, key, value, o)
  local v, same = self._values, rawequal(query, key) and rawequal(key, value)
  for i, name in ipairs { "query", "key", "value" } do
    local t = select(i, query, key, value)
    if not core.is_tensor(t) then error(("%s must be a tensor, got %s"):format(name, options.show(t)), 0) end
  end
  local single = query:dim() == 2
  local expected = single and 2 or 3
  if query:dim() ~= expected or key:dim() ~= expected or value:dim() ~= expected then
    error(("query, key and value must all be (L, E), or all with a batch, got %s, %s, %s"):format(
      lists.shape_text(query), lists.shape_text(key),
      lists.shape_text(value)), 0)
  end
  local alike = rawequal(key, value)
  local function batched(t)
    if single then return t:unsqueeze(1) end
    return v.batch_first and t or t:transpose(1, 2)
  end
  query = batched(query)
  if same then
    key, value = query, query
  else
    key = batched(key)
    value = alike and key or batched(value)
  end

  local N, L, S = query.shape[1], query.shape[2], key.shape[2]
  local padding, attention, causal = o.key_padding_mask, o.attn_mask, o.is_causal
  if padding then
    check_mask("key_padding_mask", padding)
    check_shape("key_padding_mask", padding, single and { S } or { N, S })
    padding = padding:reshape(N, 1, 1, S)
  end
  if attention then
    check_mask("attn_mask", attention)
    check_shape("attn_mask", attention, { L, S }, { N * v.num_heads, L, S })
    if attention:dim() == 3 then attention = attention:reshape(N, v.num_heads, L, S) end
  end
  local more = (v.bias_k and 1 or 0) + (v.add_zero_attn and 1 or 0)
  -- is_causal says that attn_mask is the causal one; that mask itself is then only needed beside
  -- others
  if causal and (padding or o.need_weights or more > 0) then
    attention, causal = attention or above_diagonal(L, S, query.device), false
  elseif causal then
    attention = nil
  end

  local q, k, w
  if same and v.in_proj_weight and more == 0 then
    local all = linear(query, v.in_proj_weight, v.in_proj_bias)
    q, k, w = all:split_heads(v.num_heads)
    core.release(all)
  else
    q, k, w = projected(v, query, key, value)
    if v.bias_k then
      k = core.cat({ k, v.bias_k:expand(N, 1, v.embed_dim) }, 2)
      w = core.cat({ w, v.bias_v:expand(N, 1, v.embed_dim) }, 2)
    end
    if v.add_zero_attn then
      local zeros = core.zeros({ N, 1, v.embed_dim }, { dtype = k.dtype, device = k.device })
      k, w = core.cat({ k, zeros }, 2), core.cat({ w, zeros }, 2)
    end
    if more > 0 then padding, attention = widened(padding, more), widened(attention, more) end
    q, k, w = heads(q, v.num_heads), heads(k, v.num_heads), heads(w, v.num_heads)
  end
  local hidden = joined(padding, attention, q.dtype)
  local dropout = self.training and v.dropout or 0
  local y, weights
  if o.need_weights then
    y, weights = with_weights(q, k, w, hidden, dropout)
    if o.average_attn_weights then weights = weights:mean(2) end
    if single then weights = weights:squeeze(1) end
  else
    if hidden and hidden.dtype == "bool" then hidden = hidden:logical_not() end
    y = sdpa(q, k, w, hidden, dropout, causal)
  end
  y = y:transpose(2, 3):reshape(N, L, v.embed_dim)
  local out = linear(y, v.out_proj.weight, v.out_proj.bias)
  for _, t in ipairs { q, k, w, y } do core.release(t) end
  if single then return out:squeeze(1), weights end
  return v.batch_first and out or out:transpose(1, 2), weights
end

MultiheadAttention._attend = forward

--- Inputs are (L, N, E) and (S, N, ..), or (N, L, E) with batch_first, or without N. In masks true
--- (or -inf) hides a key. The second result is the weights, (N, L, S), or (N, H, L, S) if they are
--- not averaged over heads. need_weights = false omits them and is much faster. is_causal = true
--- applies a causal mask, given or not.
---@param query accelerate.Tensor
---@param key accelerate.Tensor
---@param value accelerate.Tensor
---@param ... any key_padding_mask, need_weights = true, attn_mask, average_attn_weights = true,
---  is_causal = false; by position, by name in a table at the end, or both. query, key and value
---  may be in the table, too.
---@return accelerate.Tensor output
---@return accelerate.Tensor? weights
function MultiheadAttention:forward(query, key, value, ...)
  local o = options.check("MultiheadAttention", options.gather("MultiheadAttention", ORDER, ...), CALL)
  return self:_run(forward, self, query, key, value, o)
end
rawset(MultiheadAttention, "forward", positions.arrange("MultiheadAttention", "query key value ...",
  MultiheadAttention.forward, true))

return { MultiheadAttention = MultiheadAttention }
