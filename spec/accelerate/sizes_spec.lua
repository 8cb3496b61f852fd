-- Sizes in messages: one function in Lua and one in C write them, in decimal units, and no other
-- text of the sources prints a number of KB, MB or GB.
local core = require "accelerate.core"
local sizes = require "accelerate.utils.sizes"

describe("a size", function()
  it("has decimal units", function()
    local texts = {}
    for i, bytes in ipairs { 0, 999, 1000, -1500, 2 ^ 20, 999949999, 1e9, 2 ^ 30, 3e12, 2.5e15 } do
      texts[i] = sizes.text(bytes)
    end
    assert.are.same({ "0 bytes", "999 bytes", "1.0 KB", "-1.5 KB", "1.0 MB", "999.9 MB", "1.00 GB", "1.07 GB",
      "3.00 TB", "2.50 PB" }, texts)
  end)

  it("is written alike by the core", function()
    local limit = core.memory_stats().limit_bytes
    core.set_memory_limit(core.memory_stats().live_bytes + 1000)
    for _, bytes in ipairs { 1016, 52428800, 2 ^ 30 } do
      local ok, message = pcall(core.empty, bytes / 8, { dtype = "float64" })
      assert.is_false(ok)
      assert.truthy(message:find("out of memory: " .. sizes.text(bytes) .. " asked for", 1, true), message)
    end
    core.set_memory_limit(limit)
  end)
end)

-- Texts with a decimal unit that print no size of ours, by file and word.
local OTHERS = {
  ["lua/accelerate/utils/sizes.lua"] = "writes them",
  ["host/core/memory/report.c"] = "writes them",
  ["lua/accelerate/utils/objects.lua"] = "convert_bytes, as Accelerate has it",
  ["lua/accelerate/tokenizers/chat/filters.lua"] = "filesizeformat, as Jinja has it",
  ["lua/accelerate/weights.lua"] = "the units that max_shard_size takes",
  ["lua/accelerate/accelerator/saving.lua"] = "max_shard_size = 10GB",
  ["lua/accelerate/models/pretrained.lua"] = "max_shard_size = 50GB",
  ["lua/accelerate/big_modeling/limits.lua"] = "the kernel's kB",
  ["host/core/memory/alloc.c"] = "the kernel's kB",
}

-- Calls fn(path, line, text) with each string literal of the sources.
local function each_literal(fn)
  local list = io.popen("find lua host kernels -name '*.lua' -o -name '*.[ch]' -o " ..
    "-name '*.cu' -o -name '*.def'")
  for path in list:lines() do
    local number = 0
    for line in io.lines(path) do
      number = number + 1
      local code = line:gsub("^%s*[-/]?[-/*]+ .*", "")
      for text in code:gmatch '"([^"]*)"' do fn(path, number, text) end
    end
  end
  list:close()
end

describe("the sources", function()
  it("print sizes through the two functions alone", function()
    local found, seen = {}, {}
    each_literal(function(path, number, text)
      for word in text:gmatch "%f[%a][kKMGT][bB]%f[%A]" do
        if not OTHERS[path] and path:sub(1, 11) ~= "host/tools/" then
          found[#found + 1] = ("%s:%d: %s in \"%s\""):format(path, number, word, text)
        end
        seen[path] = true
      end
    end)
    assert.are.same({}, found)
    for path in pairs(OTHERS) do assert.is_true(seen[path], path .. " has no such text any more") end
  end)

  it("name powers of 1024 in fixed texts alone", function()
    local found = {}
    each_literal(function(path, number, text)
      -- ulimit -s counts in KiB
      if text:find "%%[%d.]*l*[dufgsz]+ ?[KMGT]iB" and path ~= "host/script/main.c" then
        found[#found + 1] = ("%s:%d: \"%s\""):format(path, number, text)
      end
    end)
    assert.are.same({}, found)
  end)
end)
