const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
function rgba(colour) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}
const light = (part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
const luminance = (c) => 0.2126 * light(c[0] / 255) + 0.7152 * light(c[1] / 255) + 0.0722 * light(c[2] / 255);
function ground(node) {
  for (let at = node; at; at = at.parentElement) {
    const found = rgba(getComputedStyle(at).backgroundColor);
    if (found[3] === 1) return found;
    if (found[3] > 0) throw new Error("a ground that shines through");
  }
  throw new Error("no ground");
}
for (const one of document.querySelectorAll("details")) one.open = true;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const found = new Map();
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
  const style = getComputedStyle(node);
  const ink = node.closest("svg") ? style.fill : style.color;
  const behind = ground(node);
  const key = ink + " on " + behind;
  if (found.has(key)) continue;
  const [a, b] = [luminance(rgba(ink)), luminance(behind)].sort((x, y) => y - x);
  found.set(key, [(a + 0.05) / (b + 0.05), node.tagName + "." + node.className]);
}
return [...found].map(([key, [ratio, where]]) => [ratio, key + " at " + where]);
