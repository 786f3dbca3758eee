// Draws TeX as MathML, for the console; `npm run vendor` makes math.min.js of it.

import temml from "temml";

/** Put the elements of a formula into `into`. Commands that lead elsewhere (links, pictures) are not followed. */
export function draw(tex, into, block) {
  temml.render(tex, into, { displayMode: block, throwOnError: false, trust: false, maxSize: [20, 400], maxExpand: 500 });
}
