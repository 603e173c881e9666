// A canvas to draw on. Every finished stroke sends the whole drawing; a button clears it.
const canvas = element.querySelector("canvas"), pen = canvas.getContext("2d");
pen.lineWidth = canvas.width / 10;
pen.lineCap = pen.lineJoin = "round";
pen.strokeStyle = "#fff";
let drawing = false;
const at = (event) => {
  const box = canvas.getBoundingClientRect(), scale = canvas.width / box.width;
  return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
};
canvas.addEventListener("pointerdown", (event) => {
  drawing = true;
  canvas.setPointerCapture(event.pointerId);
  pen.beginPath();
  pen.moveTo(...at(event));
  pen.lineTo(...at(event));
  pen.stroke();
});
canvas.addEventListener("pointermove", (event) => {
  if (!drawing) return;
  pen.lineTo(...at(event));
  pen.stroke();
});
canvas.addEventListener("pointerup", () => {
  if (drawing) trigger("submit", { image: canvas.toDataURL("image/png") });
  drawing = false;
});
element.querySelector("button").addEventListener("click", () => pen.clearRect(0, 0, canvas.width, canvas.height));
