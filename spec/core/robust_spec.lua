-- No value of any type, in any place, brings a function of the binding down: each call returns or
-- raises a Lua error with a text.
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"

local released = tensor.ones(1)
core.release(released)
local cyclic = {}
cyclic[1] = cyclic

local function values()
  return {
    { "nothing" }, { "nil", n = 1 }, { "a boolean", true }, { "zero", 0 }, { "one", 1 }, { "-1", -1 },
    { "1.5", 1.5 }, { "NaN", 0 / 0 },
    { "inf", math.huge }, { "2^53", 2 ^ 53 }, { "-2^62", -2 ^ 62 }, { "1e300", 1e300 },
    { "a string", "no/abc" },
    { "an empty string", "" },
    { "an empty table", {} }, { "a list", { 1, 2 } }, { "a list of strings", { "a" } },
    { "a list of huge numbers", { 1e18, 1e18 } },
    { "options", { zzz = 1 } }, { "nine numbers", { 1, 1, 1, 1, 1, 1, 1, 1, 1 } }, { "a cycle", cyclic },
    { "a function", print },
    { "a coroutine", coroutine.create(print) }, { "a file", io.stdout }, { "a cdata", 5LL },
    { "a proxy", newproxy(true) },
    { "a tensor", tensor.ones(2, 3) }, { "a 0-d tensor", tensor(1) }, { "an empty tensor", tensor.zeros(0) },
    { "an int64 tensor", tensor({ 0, 5 }, { dtype = "int64" }) },
    { "a bool tensor", tensor({ true, false }) },
    { "an 8-d tensor", tensor.ones(1, 1, 1, 1, 1, 1, 1, 2) },
    { "a leaf", tensor.ones(2, { requires_grad = true }) },
    { "a result", tensor.ones(2, { requires_grad = true }) * 2 }, { "a released tensor", released },
    { "a list of tensors", { tensor.ones(2), tensor.ones(2) } },
    { "a list with a released tensor", { released } }, { "a Generator", tensor.Generator(1) },
  }
end

-- These wait for other ranks, end the process's memory, write files, or switch something that the
-- rest of the run needs.
local LEFT_OUT = {
  dist = true, set_memory_limit = true, debug_fail_alloc = true, safetensors_save = true,
  set_num_threads = true,
  set_grad_enabled = true, no_grad = true, enable_grad = true, scope = true, keep = true, release = true,
}

local function try(where, fn, ...)
  local ok, message = pcall(fn, ...)
  if not ok then
    assert(type(message) == "string" and #message > 0, where .. ": raised " .. type(message))
    -- an error of Lua's own would mean that the binding let something through (arithmetic with
    -- cdata is the FFI's affair)
    assert(not message:find("attempt to", 1, true) or message:find("'int64_t'", 1, true), where .. ": " ..
      message)
  end
end

local function args_of(entry) return entry[2], entry.n or (entry[2] ~= nil and 1 or 0) end

local function call_with(name, fn, self)
  for _, a in ipairs(values()) do
    local first, n = args_of(a)
    if self then try(name .. "(self, " .. a[1] .. ")", fn, self(), first)
    elseif n == 0 then try(name .. "()", fn)
    else try(name .. "(" .. a[1] .. ")", fn, first) end
  end
end

local function call_with_two(name, fn)
  local list = values()
  for _, a in ipairs(list) do
    for _, b in ipairs(list) do
      try(("%s(%s, %s)"):format(name, a[1], b[1]), fn, a[2], b[2])
    end
  end
end

local function functions()
  local names = {}
  for name, value in pairs(core) do
    if type(value) == "function" and not LEFT_OUT[name] then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

describe("every function of the core", function()
  it("takes one value of any type", function()
    for _, name in ipairs(functions()) do call_with(name, core[name]) end
  end)

  it("takes two values of any types", function()
    for _, name in ipairs(functions()) do call_with_two(name, core[name]) end
  end)

  it("takes a tensor and two values of any types", function()
    local list = values()
    for _, row in ipairs(core.ops()) do
      if not row.hidden then
        for _, a in ipairs(list) do
          for _, b in ipairs(list) do
            local x = tensor.ones(2, 3)
            try(("%s(tensor, %s, %s)"):format(row.name, a[1], b[1]), core[row.name], x, a[2], b[2])
          end
        end
      end
    end
  end)
end)

describe("every method of a tensor", function()
  local METHODS = {
    "dim", "numel", "size", "stride", "is_contiguous", "element_size", "storage_offset", "nbytes", "detach",
    "detach_", "requires_grad_", "to",
    "float", "double", "half", "bfloat16", "long", "int", "byte", "bool", "totable", "item", "data_ptr",
    "backward", "copy_", "fill_", "zero_",
    "register_hook", "register_post_accumulate_grad_hook",
  }
  for _, row in ipairs(core.ops()) do
    if row.inplace and not row.hidden then METHODS[#METHODS + 1] = row.name .. "_" end
  end

  it("takes any value as itself", function()
    local any = tensor.ones(1)
    for _, name in ipairs(METHODS) do call_with(name, any[name]) end
  end)

  it("takes any value as its argument", function()
    local any = tensor.ones(1)
    for _, name in ipairs(METHODS) do
      call_with(name, any[name], function() return tensor.ones(2, 3) end)
      call_with(name, any[name], function() return tensor.ones(2, 3, { requires_grad = true }) * 2 end)
    end
  end)
end)

describe("fields, keys and operators", function()
  it("take any value", function()
    local list = values()
    for _, a in ipairs(list) do
      for _, field in ipairs { "grad", "data", "requires_grad", "shape", "dtype", "nonsense" } do
        try("x." .. field .. " = " .. a[1], function() tensor.ones(2, 3)[field] = a[2] end)
      end
      try("x[" .. a[1] .. "]", function() return tensor.ones(2, 3)[a[2]] end)
      try("x[{" .. a[1] .. "}]", function() return tensor.ones(2, 3)[{ a[2] }] end)
      for _, b in ipairs(list) do
        try(("x[%s] = %s"):format(a[1], b[1]), function() tensor.ones(2, 3)[a[2]] = b[2] end)
        try(("x[{%s, %s}]"):format(a[1], b[1]), function() return tensor.ones(2, 3)[{ a[2], b[2] }] end)
        try(("x[{ {%s, %s} }]"):format(a[1], b[1]),
          function() return tensor.ones(2, 3)[{ { a[2], b[2] } }] end)
      end
      try("x + " .. a[1], function() return tensor.ones(2, 3) + a[2] end)
      try(a[1] .. " ^ x", function() return a[2] ^ tensor.ones(2, 3) end)
    end
  end)

  it("cannot reach the metatable", function()
    assert.equal("tensor", getmetatable(tensor.ones(1)))
    assert.has_error(function() setmetatable(tensor.ones(1), {}) end)
    local real = debug.getmetatable(tensor.ones(1))
    for _, a in ipairs(values()) do
      try("__gc(" .. a[1] .. ")", real.__gc, a[2])
      try("__len(" .. a[1] .. ")", real.__len, a[2])
      try("__tostring(" .. a[1] .. ")", real.__tostring, a[2])
      try("__index(" .. a[1] .. ")", real.__index, a[2], "shape")
      try("__newindex(" .. a[1] .. ")", real.__newindex, a[2], 1, 1)
      try("__add(" .. a[1] .. ")", real.__add, a[2], a[2])
    end
  end)
end)

describe("methods of generators, hook handles and ctx", function()
  it("take any value as themselves", function()
    local g = tensor.Generator(1)
    local x = tensor.ones(1, { requires_grad = true })
    local handle = x:register_hook(print)
    local ctx
    tensor.Function { forward = function(c, v) ctx = c return v end,
      backward = function(_, d) return d end }(x)
    for _, name in ipairs { "manual_seed", "initial_seed", "get_state", "set_state" } do
      call_with_two(name, g[name])
    end
    call_with("remove", handle.remove)
    for _, name in ipairs { "save_for_backward", "saved_tensors" } do call_with_two(name, ctx[name]) end
    handle:remove()
    handle:remove()
  end)
end)
