-- Hooks of state dicts, and extra state. Orders and arguments are PyTorch's, but that all hooks
-- before loading run first.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local ordered = require "accelerate.utils.ordered"
local messages = require "spec.support.messages"
local message, raises = messages.message, messages.raises

local log

local function logged()
  local text = table.concat(log, "; ")
  log = {}
  return text
end

local function note(...) log[#log + 1] = table.concat({ ... }, " ") end

local Leaf = nn.class("Leaf")
function Leaf:init()
  self.w = nn.Parameter(core.zeros(2))
  self.note = "a"
end
function Leaf:get_extra_state()
  note "get"
  return { note = self.note }
end
function Leaf:set_extra_state(state)
  note("set", state.note)
  self.note = state.note
end

local Net = nn.class("Net")
function Net:init()
  self.a = Leaf()
  self.b = nn.Linear(1, 1)
end

local function watched()
  log = {}
  local net = Net()
  for name, module in ordered.pairs { root = net, a = net.a, b = net.b } do
    module:register_state_dict_pre_hook(function(self, prefix, keep)
      assert.equal(module, self)
      note("pre", name, "'" .. prefix .. "'", tostring(keep))
    end)
    module:register_state_dict_post_hook(function(_, dict, prefix, metadata)
      assert.same({}, metadata)
      note("post", name, "'" .. prefix .. "'", #ordered.keys(dict))
    end)
    module:register_load_state_dict_pre_hook(function(_, dict, prefix, metadata, strict, ...)
      assert.same({}, metadata)
      local missing, unexpected, errors = ...
      note("load", name, "'" .. prefix .. "'", table.concat(ordered.keys(dict), ","), tostring(strict),
        #missing, #unexpected, #errors)
    end)
    module:register_load_state_dict_post_hook(function(_, keys)
      note("loaded", name, #keys.missing_keys, #keys.unexpected_keys)
    end)
  end
  return net
end

describe("hooks of state dicts", function()
  it("run around each module's part", function()
    local net = watched()
    local dict = net:state_dict()
    assert.same({ "a.w", "a._extra_state", "b.weight", "b.bias" }, ordered.keys(dict))
    assert.equal("pre root '' false; pre a 'a.' false; get; post a 'a.' 2; pre b 'b.' false; " ..
      "post b 'b.' 4; post root '' 4", logged())
    net:load_state_dict(dict)
    assert.equal("load root '' a.w,a._extra_state,b.weight,b.bias true 0 0 0; " ..
      "load a 'a.' a.w,a._extra_state true 0 0 0; load b 'b.' b.weight,b.bias true 0 0 0; " ..
      "set a; loaded a 0 0; loaded b 0 0; loaded root 0 0", logged())
    net:state_dict { prefix = "net.", keep_vars = true }
    assert.matches("^pre root 'net%.' true; pre a 'net%.a%.' true; .*post root 'net%.' 4$", logged())
  end)

  it("change what is saved, loaded and reported", function()
    local net = watched()
    local dict = net:state_dict()
    dict["b.bias"], dict["a._extra_state"] = nil, nil
    dict["b.x"] = core.ones(1)
    local text = message(net.load_state_dict, net, dict)
    messages.has(text, "missing keys: a._extra_state, b.bias\n  unexpected keys: b.x")
    local forgive = net:register_load_state_dict_post_hook(function(_, keys)
      keys.missing_keys, keys.unexpected_keys = {}, {}
    end)
    dict["a.w"] = core.ones(2)
    assert.same({ missing_keys = {}, unexpected_keys = {} }, net:load_state_dict(dict))
    assert.equal(2, net.a.w:sum():item())
    forgive:remove()
    net.b:register_load_state_dict_pre_hook(function(_, state, prefix, _, _, _, _, errors)
      state[prefix .. "bias"], state[prefix .. "x"] = state[prefix .. "x"], nil
      errors[#errors + 1] = "mine"
    end)
    text = message(net.load_state_dict, net, dict)
    messages.has(text, "does not fit Net:\n  missing keys: a._extra_state\n  mine")
    assert.is_not_nil(dict["b.x"])
    assert.is_nil(dict["b.bias"])

    net = nn.Linear(1, 1)
    net:register_state_dict_post_hook(function(_, state, prefix) state[prefix .. "bias"] = nil end)
    assert.same({ "weight" }, ordered.keys(net:state_dict()))
    assert.same({ "weight" }, ordered.keys(net:clone():state_dict()))
    assert.is_false(net._hooked)
    net:register_state_dict_post_hook(function() return {} end)
    raises("a hook of register_state_dict_post_hook must return nothing", net.state_dict, net)
    net:register_load_state_dict_post_hook(function() return 1 end)
    raises("a hook of register_load_state_dict_post_hook must return nothing", net.load_state_dict, net,
      { weight = core.ones(1, 1), bias = core.ones(1) })
    raises("hook must be a function, got 3", net.register_state_dict_pre_hook, net, 3)
  end)

  it("are removed, and stay with a lazy module", function()
    local net, seen = nn.LazyLinear(2), 0
    local handle = net:register_state_dict_pre_hook(function() seen = seen + 1 end)
    net(core.ones(1, 3))
    net:state_dict()
    assert.equal(1, seen)
    handle:remove()
    handle:remove()
    net:state_dict()
    assert.equal(1, seen)
  end)
end)

describe("extra state", function()
  it("is saved with the tensors and given back", function()
    log = {}
    local from, to = Net(), Net()
    from.a.note = "new"
    to:load_state_dict(from:state_dict())
    assert.equal("new", to.a.note)
    assert.equal("get; set new", logged())
  end)

  it("belongs to classes that take it", function()
    raises("unexpected keys: _extra_state", function()
      nn.Linear(1, 1):load_state_dict { weight = core.ones(1, 1), bias = core.ones(1), _extra_state = 1 }
    end)
    raises("missing keys: _extra_state", function() Leaf():load_state_dict { w = core.ones(2) } end)
    local keys = Leaf():load_state_dict({ w = core.ones(2) }, { strict = false })
    assert.same({ "_extra_state" }, keys.missing_keys)
  end)
end)
