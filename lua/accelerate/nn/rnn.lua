--- Recurrent layers: RNN, LSTM, GRU, and their cells. Names of parameters, their order and their
--- first values are PyTorch's.
---
---   local lstm = nn.LSTM(10, 20, { num_layers = 2 })
---   local y, state = lstm(x)                       -- x (T, B, 10) -> y (T, B, 20); state is { h,
---     c }, each (2, B, 20)
---   y, state = lstm(more, state)
---
--- A layer is two rows: one linear over all steps for the input's part of the gates, and lstm_layer
--- (gru_layer, rnn_layer) for what goes from step to step.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local notice = require "accelerate.messages.notice"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"
local init = require "accelerate.nn.initializers"
local sizes = require "accelerate.nn.sizes"
local packing = require "accelerate.nn.utils.rnn"

local fail = options.fail
local linear, release = core.linear, core.release

local SIZE = { "integer", min = 1 }
local PLACE = { dtype = { "string", optional = true }, device = { "string", optional = true } }
local BIAS = { "boolean", default = true }
local NONLINEARITY = { "string", default = "tanh", one_of = { "tanh", "relu" } }

local function schema(more)
  for name, entry in next, PLACE do more[name] = entry end
  return more
end

local function check_tensor(where, what, value, expected)
  if not core.is_tensor(value) then
    fail("%s: %s must be %s, got %s", where, what, expected, options.show(value))
  end
end

local function reset(self)
  local bound = 1 / math.sqrt(self.hidden_size)
  for _, p in ipairs(self:parameters { recurse = false }) do init.uniform_(p, -bound, bound) end
end

-- ---- layers

local GATES = { RNN = 1, GRU = 3, LSTM = 4 }

local RNNBase = class("RNNBase", Module)

local LAYER = {
  num_layers = { "integer", default = 1, min = 1, max = sizes.LAYERS.max }, bias = BIAS,
  batch_first = { "boolean", default = false },
  dropout = { "number", default = 0, min = 0, max = 1 }, bidirectional = { "boolean", default = false },
}

local function add_weights(self, layer, suffix, width)
  local rows, place = GATES[self.mode] * self.hidden_size, self._place
  local function add(name, ...)
    self[("%s_l%d%s"):format(name, layer - 1, suffix)] = parameter.empty({ ... }, place)
  end
  add("weight_ih", rows, width)
  add("weight_hh", rows, self.proj_size > 0 and self.proj_size or self.hidden_size)
  if self.bias then
    add("bias_ih", rows)
    add("bias_hh", rows)
  end
  if self.proj_size > 0 then add("weight_hr", self.proj_size, self.hidden_size) end
end

local function setup(self, mode, input_size, hidden_size, opts, allowed)
  local o = options.check(mode, opts, allowed)
  self.mode = mode
  self.input_size = options.value(mode, "input_size", input_size, SIZE)
  self.hidden_size = options.value(mode, "hidden_size", hidden_size, SIZE)
  for _, name in ipairs { "num_layers", "bias", "batch_first", "dropout", "bidirectional" } do
    self[name] = o[name]
  end
  self.proj_size = o.proj_size or 0
  if self.proj_size >= hidden_size then
    fail("LSTM: proj_size must be below hidden_size, got %d and %d", self.proj_size, hidden_size)
  end
  if self.dropout > 0 and self.num_layers == 1 then
    notice.main_once("%s: dropout=%g acts between layers, and there is one", mode, self.dropout)
  end
  self.nonlinearity = o.nonlinearity
  self._place = { dtype = o.dtype, device = o.device }
  local width = input_size
  local out = (self.proj_size > 0 and self.proj_size or hidden_size) * (self.bidirectional and 2 or 1)
  for layer = 1, self.num_layers do
    add_weights(self, layer, "", width)
    if self.bidirectional then add_weights(self, layer, "_reverse", width) end
    width = out
  end
  reset(self)
end

--- Draws all weights anew, as PyTorch does: uniform in +-1/sqrt(hidden_size).
function RNNBase:reset_parameters() reset(self) end

--- Does nothing: weights need not be neighbours in memory. It exists for scripts that call it.
function RNNBase:flatten_parameters() end

function RNNBase:extra_repr()
  local parts = { ("%d, %d"):format(self.input_size, self.hidden_size) }
  local function add(name, default)
    local value = self[name]
    if value ~= default then parts[#parts + 1] = ("%s=%s"):format(name, Module._show(value)) end
  end
  add("proj_size", 0)
  add("num_layers", 1)
  add("bias", true)
  add("batch_first", false)
  add("dropout", 0)
  add("bidirectional", false)
  return table.concat(parts, ", ")
end

-- One direction of one layer over all steps. Returns y, the last h and the last c.
local run = {}

local function sum_of_biases(values, at)
  local a, b = values["bias_ih" .. at], values["bias_hh" .. at]
  return a and a + b
end

-- The last h: of the last step, or where packed sequences end.
local function last_state(y, packed, reverse)
  if packed then return y:index_select(1, packed:_ends()) end
  return y:select(1, reverse and 1 or -1)
end

function run.LSTM(values, at, x, h, c, packed, reverse)
  local bias = sum_of_biases(values, at)
  local gx = linear(x, values["weight_ih" .. at], bias)
  local y, c_last = core.lstm_layer(gx, values["weight_hh" .. at], h, c, packed and packed:_steps() or nil,
    reverse and not packed)
  release(gx)
  if bias then release(bias) end
  return y, last_state(y, packed, reverse), c_last
end

function run.GRU(values, at, x, h, _, packed, reverse)
  local gx = linear(x, values["weight_ih" .. at], values["bias_ih" .. at])
  local y = core.gru_layer(gx, values["weight_hh" .. at], values["bias_hh" .. at], h,
    packed and packed:_steps() or nil, reverse and not packed)
  release(gx)
  return y, last_state(y, packed, reverse)
end

function run.RNN(values, at, x, h, _, packed, reverse)
  local bias = sum_of_biases(values, at)
  local gx = linear(x, values["weight_ih" .. at], bias)
  local y = core.rnn_layer(gx, values["weight_hh" .. at], h, packed and packed:_steps() or nil,
    values.nonlinearity, reverse and not packed)
  release(gx)
  if bias then release(bias) end
  return y, last_state(y, packed, reverse)
end

-- An LSTM whose h is projected goes step by step.
local function run_projected(values, at, x, h, c, packed, reverse)
  if packed then fail("LSTM: packed sequences are not available with proj_size; use padded ones") end
  local steps, ys = x:size(1), {}
  for i = 1, steps do
    local t = reverse and steps + 1 - i or i
    local raw
    raw, c = core.lstm_cell(x:select(1, t), h, c, values["weight_ih" .. at], values["weight_hh" .. at],
      values["bias_ih" .. at], values["bias_hh" .. at])
    h = linear(raw, values["weight_hr" .. at])
    ys[t] = h
  end
  return core.stack(ys, 1), h, c
end

local function stacked(list)
  if #list == 1 then return list[1]:unsqueeze(1) end
  local joined = core.stack(list, 1)
  for i = 1, #list do release(list[i]) end
  return joined
end

local function all_layers(self, x, h0, c0, packed)
  local values = self._values
  local step = values.proj_size > 0 and run_projected or run[values.mode]
  local directions, hs, cs = values.bidirectional and 2 or 1, {}, {}
  local ours = false  -- x was made in this loop
  for layer = 1, values.num_layers do
    local ys = {}
    for d = 1, directions do
      local n, reverse = (layer - 1) * directions + d, d == 2
      local input = x
      if reverse and packed then input = x:index_select(1, packed:_turned()) end
      local y, h, c = step(values, ("_l%d%s"):format(layer - 1, reverse and "_reverse" or ""), input, h0[n],
        c0 and c0[n], packed, reverse)
      if reverse and packed then
        release(input)
        local turned = y
        y = turned:index_select(1, packed:_turned())
        release(turned)
      end
      ys[d], hs[n], cs[n] = y, h, c
    end
    local y = ys[1]
    if directions == 2 then
      y = core.cat(ys, -1)
      release(ys[1])
      release(ys[2])
    end
    if values.dropout > 0 and self.training and layer < values.num_layers then
      local whole = y
      y = core.dropout(whole, values.dropout, true)
      release(whole)
    end
    if ours then release(x) end
    x, ours = y, true
  end
  return x, stacked(hs), c0 and stacked(cs)
end

-- The first states as lists with one (B, H) for each layer and direction. `given`: (L * D, B, H) or
-- nil.
local function first_states(self, what, given, batch, width, like, packed, batched)
  local n = self.num_layers * (self.bidirectional and 2 or 1)
  local list = {}
  if given == nil then
    local zero = core.zeros({ batch, width }, { dtype = like.dtype, device = like.device })
    for k = 1, n do list[k] = zero end
    return list
  end
  check_tensor(self.mode, what, given, "a tensor")
  if not batched and given:dim() == 2 then given = given:unsqueeze(2) end
  local s = given.shape
  if #s ~= 3 or s[1] ~= n or s[2] ~= batch or s[3] ~= width then
    fail("%s: %s must be [%d, %s%d] for this input, got %s", self.mode, what, n, batched and batch .. ", "
      or "", width, lists.shape_text(given))
  end
  if packed and packed.sorted_indices then given = given:index_select(2, packed.sorted_indices) end
  for k = 1, n do list[k] = given:select(1, k) end
  return list
end

-- y, h and c of any form of input.
local function forward(self, x, h, c)
  local packed = packing._is_packed(x) and x
  local data = packed and packed.data or x
  check_tensor(self.mode, "the input", data, "a tensor or a packed sequence")
  local dims = data:dim()
  local batched = packed or dims == 3
  if not packed and dims ~= 2 and dims ~= 3 then
    fail("%s: the input must be %s or unbatched (T, %d), got %s", self.mode,
      self.batch_first and ("(B, T, %d)"):format(self.input_size) or ("(T, B, %d)"):format(self.input_size),
      self.input_size, lists.shape_text(data))
  end
  if data:size(-1) ~= self.input_size then
    fail("%s: the input %s has %d features, the layer expects %d", self.mode, lists.shape_text(data),
      data:size(-1),
      self.input_size)
  end
  if not packed then
    if not batched then data = data:unsqueeze(2)
    elseif self.batch_first then data = data:transpose(1, 2) end
  end
  local batch = packed and packed:_batch() or data:size(2)
  local real = self.proj_size > 0 and self.proj_size or self.hidden_size
  local h0 = first_states(self, self.mode == "LSTM" and "the first h" or "the first state", h, batch, real,
    data, packed, batched)
  local c0 = self.mode == "LSTM" and first_states(self, "the first c", c, batch, self.hidden_size, data,
    packed, batched) or nil
  local y, hn, cn = all_layers(self, data, h0, c0, packed)
  if packed then
    if packed.unsorted_indices then
      hn, cn = hn:index_select(2, packed.unsorted_indices), cn and cn:index_select(2, packed.unsorted_indices)
    end
    return packed:_with(y), hn, cn
  end
  if not batched then return y:squeeze(2), hn:squeeze(2), cn and cn:squeeze(2) end
  if self.batch_first then y = y:transpose(1, 2) end
  return y, hn, cn
end

---@class accelerate.nn.RNN : accelerate.nn.Module
local RNN = class("RNN", RNNBase)

local RNN_OPTIONS = { nonlinearity = NONLINEARITY }
for name, entry in next, LAYER do RNN_OPTIONS[name] = entry end
schema(RNN_OPTIONS)

--- h_t = tanh(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh), in layers. `y, h = rnn(x, h0)`: x (T, B,
--- input_size), or (B, T, input_size) with batch_first, or (T, input_size), or a packed sequence;
--- h0 and h (layers * directions, B, hidden_size); h0 is zero when left out.
---@param input_size integer
---@param hidden_size integer
---@param opts? { num_layers: integer, nonlinearity: "tanh"|"relu", bias: boolean, batch_first:
---  boolean, dropout: number, bidirectional: boolean, dtype: string, device: string }
function RNN:init(input_size, hidden_size, opts)
  setup(self, "RNN", input_size, hidden_size, opts, RNN_OPTIONS)
end

function RNN:forward(x, h)
  local y, hn = self:_run(forward, self, x, h)
  return y, hn
end

---@class accelerate.nn.GRU : accelerate.nn.Module
local GRU = class("GRU", RNNBase)

local GRU_OPTIONS = {}
for name, entry in next, LAYER do GRU_OPTIONS[name] = entry end
schema(GRU_OPTIONS)

--- Gated recurrent units. `y, h = gru(x, h0)`, with shapes as for nn.RNN.
---@param input_size integer
---@param hidden_size integer
---@param opts? { num_layers: integer, bias: boolean, batch_first: boolean, dropout: number,
---  bidirectional: boolean, dtype: string, device: string }
function GRU:init(input_size, hidden_size, opts)
  setup(self, "GRU", input_size, hidden_size, opts, GRU_OPTIONS)
end

GRU.forward = RNN.forward

---@class accelerate.nn.LSTM : accelerate.nn.Module
local LSTM = class("LSTM", RNNBase)

local LSTM_OPTIONS = { proj_size = { "integer", default = 0, min = 0 } }
for name, entry in next, LAYER do LSTM_OPTIONS[name] = entry end
schema(LSTM_OPTIONS)

--- Long short-term memory. `y, state = lstm(x, state)` with state = { h, c }, each (layers *
--- directions, B, hidden_size). h is proj_size wide if that is given. The state is zeros if it is
--- left out. Shapes of x and y are as for nn.RNN.
---@param input_size integer
---@param hidden_size integer
---@param opts? { num_layers: integer, bias: boolean, batch_first: boolean, dropout: number,
---  bidirectional: boolean, proj_size: integer, dtype: string, device: string }
function LSTM:init(input_size, hidden_size, opts)
  setup(self, "LSTM", input_size, hidden_size, opts, LSTM_OPTIONS)
end

local function pair(where, state, example)
  if state == nil then return nil, nil end
  if type(state) ~= "table" or getmetatable(state) ~= nil or #state ~= 2 then
    fail("%s: the state must be a list of two tensors, %s, got %s", where, example, options.show(state))
  end
  return state[1], state[2]
end

function LSTM:forward(x, state)
  local h, c = pair("LSTM", state, "{ h, c }")
  local y, hn, cn = self:_run(forward, self, x, h, c)
  return y, { hn, cn }
end

-- ---- cells

local RNNCellBase = class("RNNCellBase", Module)

local function setup_cell(self, name, gates, input_size, hidden_size, o)
  self.input_size = options.value(name, "input_size", input_size, SIZE)
  self.hidden_size = options.value(name, "hidden_size", hidden_size, SIZE)
  self.bias = o.bias
  local place = { dtype = o.dtype, device = o.device }
  self.weight_ih = parameter.empty({ gates * hidden_size, input_size }, place)
  self.weight_hh = parameter.empty({ gates * hidden_size, hidden_size }, place)
  if o.bias then
    self.bias_ih = parameter.empty({ gates * hidden_size }, place)
    self.bias_hh = parameter.empty({ gates * hidden_size }, place)
  end
  reset(self)
end

function RNNCellBase:reset_parameters() reset(self) end

function RNNCellBase:extra_repr()
  local text = ("%d, %d"):format(self.input_size, self.hidden_size)
  if not self.bias then text = text .. ", bias=False" end
  if self.nonlinearity and self.nonlinearity ~= "tanh" then
    text = text .. ", nonlinearity=" .. self.nonlinearity
  end
  return text
end

-- A state of zeros for x (B, I) or (I).
local function zero_state(self, x)
  check_tensor(self.__name, "the input", x, "a tensor")
  local shape = x.shape
  shape[#shape > 0 and #shape or 1] = self.hidden_size
  return core.zeros(shape, { dtype = x.dtype, device = x.device })
end

local CELL = schema { bias = BIAS }

---@class accelerate.nn.LSTMCell : accelerate.nn.Module
local LSTMCell = class("LSTMCell", RNNCellBase)

--- One step of an LSTM: `h, c = cell(x, { h, c })`, x (B, input_size) or (input_size); the state is
--- zero when left out.
---@param input_size integer
---@param hidden_size integer
---@param opts? { bias: boolean, dtype: string, device: string }
function LSTMCell:init(input_size, hidden_size, opts)
  setup_cell(self, "LSTMCell", 4, input_size, hidden_size, options.check("LSTMCell", opts, CELL))
end

function LSTMCell:forward(x, state)
  local h, c = pair("LSTMCell", state, "{ h, c }")
  if not h then
    h = zero_state(self, x)
    c = h
  end
  local v = self._values
  return self:_run(core.lstm_cell, x, h, c, v.weight_ih, v.weight_hh, v.bias_ih, v.bias_hh)
end

---@class accelerate.nn.GRUCell : accelerate.nn.Module
local GRUCell = class("GRUCell", RNNCellBase)

--- One step of a GRU: `h = cell(x, h)`.
---@param input_size integer
---@param hidden_size integer
---@param opts? { bias: boolean, dtype: string, device: string }
function GRUCell:init(input_size, hidden_size, opts)
  setup_cell(self, "GRUCell", 3, input_size, hidden_size, options.check("GRUCell", opts, CELL))
end

function GRUCell:forward(x, h)
  local v = self._values
  return self:_run(core.gru_cell, x, h or zero_state(self, x), v.weight_ih, v.weight_hh, v.bias_ih, v.bias_hh)
end

---@class accelerate.nn.RNNCell : accelerate.nn.Module
local RNNCell = class("RNNCell", RNNCellBase)

local RNN_CELL = schema { bias = BIAS, nonlinearity = NONLINEARITY }

--- One step of an RNN: `h = cell(x, h)`.
---@param input_size integer
---@param hidden_size integer
---@param opts? { bias: boolean, nonlinearity: "tanh"|"relu", dtype: string, device: string }
function RNNCell:init(input_size, hidden_size, opts)
  local o = options.check("RNNCell", opts, RNN_CELL)
  self.nonlinearity = o.nonlinearity
  setup_cell(self, "RNNCell", 1, input_size, hidden_size, o)
end

function RNNCell:forward(x, h)
  local v = self._values
  return self:_run(core.rnn_cell, x, h or zero_state(self, x), v.weight_ih, v.weight_hh, v.bias_ih, v.bias_hh,
    v.nonlinearity)
end

local classes = { RNN = RNN, LSTM = LSTM, GRU = GRU, RNNCell = RNNCell, LSTMCell = LSTMCell,
  GRUCell = GRUCell }

-- The state may be given by name.
for name, Class in next, classes do positions.forward(name, Class, "x hx") end

return classes
