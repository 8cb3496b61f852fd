-- Globals that a script reads and nothing has set are pointed out, once, with the line.
local host = require "spec.support.host"

-- Runs a script, with `other.lua` beside it.  Returns what stood on stderr.
local function err_of(script, other, launch)
  local text
  host.in_folder(function(folder)
    for name, content in pairs { ["script.lua"] = script, ["other.lua"] = other or "" } do
      local file = assert(io.open(folder .. "/" .. name, "w"))
      file:write("package.path = './?.lua;' .. package.path; ", content)
      file:close()
    end
    local words = { unpack(launch or {}) }
    words[#words + 1] = "script.lua"
    local status, _, err = host.run(words, { seconds = 60, folder = folder })
    assert.are.equal(0, status, err)
    text = err
  end)
  return text
end

describe("a global that nothing has set", function()
  it("is named with its line where its value goes somewhere, and with the name that was meant", function()
    assert.are.equal("accelerate: script.lua:2: the global 'learning_rat' is nil: nothing has set it; " ..
      "did you mean 'learning_rate'?\n",
      err_of [[
        local learning_rate = 0.1
        local options = { lr = learning_rat }
        print(options.lr, learning_rate)
      ]])
    for _, line in ipairs { "print(fourth)", "local x = fourth", "local t = { fourth }",
      "local t = {} t.x = fourth", "return fourth",
      "print(fourth == 3)", "pcall(function() return fourth + 1 end)", "print(('x'):rep(2, fourth))" } do
      assert.are.equal("accelerate: script.lua:2: the global 'fourth' is nil: nothing has set it\n",
        err_of("\n" .. line), line)
    end
  end)

  it("is named once, by rank 0, and costs little", function()
    local text = err_of([[
      local seconds = os.clock()
      local x
      for i = 1, 1e6 do x = never end
      for i = 1, 1e6 do if never_either then x = 1 end end
      assert(os.clock() - seconds < 5)
    ]], nil, { "--num_processes", "2" })
    assert.are.equal("accelerate: script.lua:3: the global 'never' is nil: nothing has set it\n", text)
  end)

  it("is nothing to speak of where the script tests it, sets it, or asks _G", function()
    assert.are.equal("", err_of [[
      local t, a = {}, nil
      if DEBUG then t.x = 1 end
      if not DEBUG then t.x = 1 end
      while DEBUG do break end
      local b, c = DEBUG or 5, DEBUG and 5
      a = DEBUG or b
      a = not DEBUG
      if DEBUG == nil or nil ~= DEBUG or type(DEBUG) == "table" then t.y = 2 end
      a = _G.DEBUG, _G["DEBUG"], rawget(_G, "DEBUG")
      print(jit.os, set_later, c, a, b)
      local function later() set_later = 1 end
      first = 1
      t.first = first
      lazy = lazy or {}
      t[1], t[2] = jit and 1, later
    ]])
  end)

  it("is nothing to speak of where the line raises by itself", function()
    for _, line in ipairs { "undefined()", "return undefined(1, 2)", "print(undefined.field)",
      "undefined:method(1)", "return undefined[1]" } do
      assert.are.equal("", err_of("pcall(function() " .. line .. " end)"), line)
    end
  end)

  it("is left alone in what the script requires, and where the script watches its globals itself", function()
    assert.are.equal("", err_of("local t = require 'other' print(t.x)", "return { x = undefined }"))
    assert.are.equal("", err_of([[
      setmetatable(_G, { __index = function(_, name) return name .. "!" end })
      assert(other_one == "other_one!")
    ]]))
  end)
end)
