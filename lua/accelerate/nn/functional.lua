--- nn.functional: what the modules compute, as functions. Those that are ops are the ops themselves.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

---@class accelerate.nn.functional
local F = {
  linear = core.linear,                -- linear(x, weight, bias?): x weight^T + bias
  relu = core.relu,
  tanh = core.tanh,
  sigmoid = core.sigmoid,
  softmax = core.softmax,              -- softmax(x, dim)
  log_softmax = core.log_softmax,      -- log_softmax(x, dim)
  dropout = core.dropout,              -- dropout(x, { p = 0.5, training = true, generator = nil })
  cross_entropy = core.cross_entropy,  -- cross_entropy(input, target, { ignore_index = -100, reduction = "mean" })
  flatten = core.flatten,
  -- scaled_dot_product_attention(query, key, value, { attn_mask, dropout_p, is_causal, scale, enable_gqa })
  scaled_dot_product_attention = core.scaled_dot_product_attention,
  layer_norm = core.layer_norm,        -- layer_norm(x, normalized_shape, weight?, bias?, eps = 1e-5)
  rms_norm = core.rms_norm,            -- rms_norm(x, normalized_shape, weight?, eps?)
  group_norm = core.group_norm,        -- group_norm(x, num_groups, weight?, bias?, eps = 1e-5)
  embedding = core.embedding,          -- embedding(input, weight, padding_idx?): rows of weight
  one_hot = core.one_hot,              -- one_hot(x, num_classes?): int64
  pad = core.pad,                      -- pad(x, { before, after, .. } from the last dim on, mode = "constant", value = 0)
}

for name, fn in next, require "accelerate.nn.functional_image" do F[name] = fn end
for name, fn in next, require "accelerate.nn.functional_distance" do F[name] = fn end

local function shape_text(t) return ("[%s]"):format(table.concat(t.shape, ", ")) end

--- For nn.MSELoss. Raises plain messages.
function F._mse_loss(input, target, reduction)
  if not (core.is_tensor(input) and core.is_tensor(target)) then
    error(("mse_loss: input and target must be tensors, got %s and %s"):format(options.show(input), options.show(target)), 0)
  end
  local a, b = shape_text(input), shape_text(target)
  if a ~= b then  -- broadcasting here is nearly always a mistake, and gives a number that looks right
    error(("mse_loss: input %s and target %s differ in shape"):format(a, b), 0)
  end
  local difference = core.sub(input, target)
  local squares = core.square(difference)
  core.release(difference)  -- the tape keeps what it needs
  if reduction == "none" then return squares end
  local loss = reduction == "sum" and core.sum(squares) or core.mean(squares)
  core.release(squares)
  return loss
end

local MSE = { reduction = { "string", default = "mean", one_of = { "mean", "sum", "none" } } }

--- (input - target)^2, averaged, summed or left as it is. The shapes must be the same.
---@param input accelerate.Tensor
---@param target accelerate.Tensor
---@param opts? { reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor loss
function F.mse_loss(input, target, opts)
  local o = options.check("mse_loss", opts, MSE)
  local ok, loss = pcall(F._mse_loss, input, target, o.reduction)
  if not ok then
    if type(loss) ~= "string" then error(loss, 0) end
    options.fail("%s", (loss:gsub("^[^\n:]+:%d+: ", "")))
  end
  return loss
end

return F
