-- For pandoc: links between the pages of the tree become links between the pages of the book.
function Link(link)
  local target, anchor = link.target:match('^([^#]*)(#?.*)$')
  if target == '' or target:match('^%a+:') then return link end
  if target:match('README%.md$') then
    target = target:gsub('README%.md$', 'index.html')
  elseif target:match('%.md$') then
    target = target:gsub('%.md$', '.html')
  elseif target:match('/$') then
    target = target .. 'index.html'
  elseif not target:match('%.svg$') then
    target = target .. '.html'
  end
  link.target = target .. anchor
  return link
end
