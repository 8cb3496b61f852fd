--- GGUF files: settings, tensors, and the configuration and tokenizer that are made of them.
local configs = require "accelerate.models.gguf.config"
local core = require "accelerate.core"
local File = require "accelerate.models.gguf.file"
local tokenizers = require "accelerate.tokenizers"

return {
  ending = ".gguf",
  read = function(path)
    local plain = { settings = {}, tensors = {} }
    local file = core._gguf_open(path)
    for _, key in ipairs(file:keys()) do plain.settings[key] = file:get(key) end
    for _, entry in ipairs(file:tensors()) do
      local ok, t = pcall(file._lend, file, entry.name)
      if ok then plain.tensors[entry.name] = t:numel() > 0 and t:reshape(-1)[1]:item() or 0
      elseif not tostring(t):find("which is not read", 1, true) then error(t, 0) end
    end
    file:_check()
    local whole = File("fuzz", path)
    if plain.settings["tokenizer.ggml.model"] then
      tokenizers.from_pretrained(path):encode "ab <s> \195\169"
    end
    plain.config = configs.of(whole)
    return plain
  end,
}
