--- What is typed at the prompt: the parser, the rewritten chunk and completion take any text; what
--- Lua compiles the prompt compiles too.
local chunks = require "accelerate.prompt.chunk"
local complete = require "accelerate.prompt.complete"

-- More locals and upvalues than a function may have, and what only a chunk of its own may hold.
local function fits(bytes)
  local _, names = bytes:gsub("[%a_][%w_]*", "")
  return names < 30 and not bytes:find("%.%.%.") and not bytes:find("^%s*#") and not bytes:find("^%s*=")
end

return {
  ending = ".txt",
  nameless = true,
  read = function(path)
    local file = assert(io.open(path, "rb"))
    local bytes = file:read("*a")
    file:close()
    complete.candidates(bytes)
    local plain = loadstring(bytes, "=[1]")
    local chunk, problem = chunks.compile(bytes, "=[1]")
    if plain and not chunk and fits(bytes) then
      error("Lua compiles a text that the prompt does not: " ..
        (problem == true and "incomplete" or problem), 0)
    end
    if not chunk then error("a chunk that cannot be compiled: " .. (problem == true and "incomplete" or
      problem:gsub("[%z\1-\8\11-\31\127]", "?")):sub(1, 400), 0) end
    return 0
  end,
}
