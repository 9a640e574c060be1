/** Steps of editing an image: strokes of a mask, turns and cuts. They are played from the start, so each can be undone. */

/** Return an image and a mask, canvases of one size, after the steps. */
export function played(source, steps) {
  let image = source;
  let mask = canvasOf(source.width, source.height);
  for (const step of steps) {
    if (step.kind === "stroke") stroke(mask, step);
    else [image, mask] = [image, mask].map((canvas) => (step.kind === "turn" ? turned(canvas) : cut(canvas, step)));
  }
  return { image, mask };
}

export function canvasOf(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

/** Draw a stroke: `points` in pixels, `size` the diameter; `isErase` takes away. */
export function stroke(mask, { points, size, isErase }) {
  const context = mask.getContext("2d");
  context.globalCompositeOperation = isErase ? "destination-out" : "source-over";
  context.strokeStyle = context.fillStyle = "#fff";
  context.lineWidth = size;
  context.lineCap = context.lineJoin = "round";
  const [[x, y], ...rest] = points;
  context.beginPath();
  context.moveTo(x, y);
  for (const point of rest.length ? rest : [[x + 0.01, y]]) context.lineTo(...point);
  context.stroke();
}

/** Return the canvas, turned to the right by a quarter. */
function turned(canvas) {
  const found = canvasOf(canvas.height, canvas.width);
  const context = found.getContext("2d");
  context.translate(canvas.height, 0);
  context.rotate(Math.PI / 2);
  context.drawImage(canvas, 0, 0);
  return found;
}

function cut(canvas, { x, y, width, height }) {
  const found = canvasOf(width, height);
  found.getContext("2d").drawImage(canvas, -x, -y);
  return found;
}

/** Return the whole rectangle between two points within an image, null for less than 8 pixels a side. */
export function rectangle([x1, y1], [x2, y2], { width, height }) {
  const within = (value, limit) => Math.min(Math.max(Math.round(value), 0), limit);
  const [left, right] = [within(Math.min(x1, x2), width), within(Math.max(x1, x2), width)];
  const [top, bottom] = [within(Math.min(y1, y2), height), within(Math.max(y1, y2), height)];
  const found = { kind: "cut", x: left, y: top, width: right - left, height: bottom - top };
  return found.width >= 8 && found.height >= 8 ? found : null;
}

/** Return the image with the mask as its transparency, the colours below kept. */
export function withMask({ image, mask }) {
  const { width, height } = image;
  const pixels = image.getContext("2d").getImageData(0, 0, width, height);
  const covered = mask.getContext("2d").getImageData(0, 0, width, height).data;
  for (let index = 3; index < covered.length; index += 4) pixels.data[index] = Math.min(pixels.data[index], 255 - covered[index]);
  return pixels;
}
