--- What the rendering of one template has used up, at which line it is, and how it fails.
---
--- Everything that a template makes or walks over is counted, so that a template from a stranger
--- ends in bounded time and memory. One call of C never has more than MOST_TEXT bytes before it:
--- Ctrl-C is heeded between calls.
local M = { line = 1 }

local MOST_STEPS = 5e6     -- of the interpreter, of entries and of 16 bytes that are looked at
local MOST_SEARCH = 2e6    -- of one search for a text in a text
local MOST_TEXT = 2 ^ 25   -- bytes of one text
local MOST_BYTES = 2 ^ 28  -- of all texts together

local steps, bytes = 0, 0

--- Begins a rendering.
function M.begin() M.line, steps, bytes = 1, 0, 0 end

--- Raises an error that chat.render gives its place.
function M.fail_at(line, format, ...) error({ line = line, message = format:format(...) }, 0) end

--- Raises an error at the line of the node that is evaluated.
function M.fail(format, ...) return M.fail_at(M.line, format, ...) end

--- Counts steps.
---@param n integer? default 1
function M.step(n)
  steps = steps + (n or 1)
  if steps > MOST_STEPS then M.fail("the template takes too long: more than %d steps", MOST_STEPS) end
end

--- Counts a look at `n` bytes.
function M.look(n) M.step(n / 16) end

--- Counts a search for `m` bytes in `n` bytes.
function M.search(n, m)
  local cost = n / 32 + math.max(0, n - m) * m / 4096
  if cost > MOST_SEARCH then
    M.fail("a search for a text of %d bytes in one of %d bytes takes too long", m, n)
  end
  M.step(cost)
end

--- Counts a text of `n` bytes before it is made.
---@param n number
function M.made(n)
  if n > MOST_TEXT then M.fail("a text is too long: more than %d bytes", MOST_TEXT) end
  bytes = bytes + n
  if bytes > MOST_BYTES then M.fail("the texts are too long: more than %d bytes together", MOST_BYTES) end
end

return M
