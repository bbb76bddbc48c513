"use strict";

// Labelling by keyboard and touch. Every offset comes from the server, in code points.

const text = document.getElementById("text");
const form = document.getElementById("answer");

function startLabelling() {
  const pieces = [...text.children];
  const words = pieces.filter((piece) => piece.className.startsWith("word"));
  const buttons = [...document.querySelectorAll("#labels button")];
  const labels = buttons.map((button) => button.dataset.label);
  const save = document.getElementById("save");
  const next = document.getElementById("next");
  let spans = JSON.parse(text.dataset.spans);
  let [anchor, focus, canExtend, isDirty] = [0, 0, false, false];

  const startOf = (piece) => Number(piece.dataset.start);
  const endOf = (piece) => Number(piece.dataset.end);
  const overlaps = (span, start, end) => span.start < end && span.end > start;
  const spanAt = (piece) => spans.find((span) => overlaps(span, startOf(piece), endOf(piece)));
  const readText = (start, end) =>
    pieces.filter((piece) => startOf(piece) >= start && endOf(piece) <= end).map((piece) => piece.textContent).join("");

  function getSelection() {
    const [first, last] = [words[Math.min(anchor, focus)], words[Math.max(anchor, focus)]];
    return words.length ? [startOf(first), endOf(last)] : [0, 0];
  }

  function draw() {
    const [start, end] = getSelection();
    for (const piece of pieces) {
      const span = spanAt(piece);
      piece.classList.toggle("selected", startOf(piece) >= start && endOf(piece) <= end);
      piece.classList.toggle("cursor", piece === words[focus]);
      piece.classList.toggle("marked", span !== undefined);
      piece.classList.toggle("first", span !== undefined && startOf(piece) <= span.start);
      piece.dataset.color = span ? labels.indexOf(span.label) % 6 : "";
      piece.dataset.label = span ? span.label : "";
    }
    if (next) [next.hidden, save.hidden] = [isDirty, !isDirty];
  }

  function select(newAnchor, newFocus) {
    [anchor, focus] = [newAnchor, newFocus].map((index) => Math.max(0, Math.min(words.length - 1, index)));
    draw();
    if (!words.length) return;
    words[focus].scrollIntoView({ block: "nearest" });
    const label = words[focus].dataset.label;
    document.getElementById("announcement").textContent = readText(...getSelection()) + (label ? ` (${label})` : "");
  }

  function setLabel(label) {
    const [start, end] = getSelection();
    if (start === end) return;
    const others = spans.filter((span) => !overlaps(span, start, end));
    spans = label ? [...others, { start, end, label }] : others;
    [isDirty, canExtend, anchor] = [true, false, focus];
    draw();
  }

  function findLine(direction) {
    const boxOf = (index) => words[index].getBoundingClientRect();
    const differs = (a, b) => Math.abs(boxOf(a).bottom - boxOf(b).bottom) > boxOf(a).height / 2;
    const line = [];
    for (let index = focus + direction; words[index]; index += direction) {
      if (!line.length && !differs(index, focus)) continue;
      if (line.length && differs(index, line[0])) break;
      line.push(index);
    }
    const distance = (index) => Math.abs(boxOf(index).left - boxOf(focus).left);
    return line.length ? line.reduce((best, index) => (distance(index) < distance(best) ? index : best)) : focus;
  }

  const moves = {
    ArrowLeft: () => focus - 1,
    ArrowRight: () => focus + 1,
    ArrowUp: () => findLine(-1),
    ArrowDown: () => findLine(1),
    Home: () => 0,
    End: () => words.length - 1,
  };

  document.addEventListener("keydown", (event) => {
    const onControl = event.target.closest("button, a, input, summary");
    if (event.ctrlKey || event.altKey || event.metaKey || (onControl && ["Enter", " "].includes(event.key))) return;
    const key = event.key === "Backspace" ? "delete" : event.key.toLowerCase();
    const button = buttons.find((other) => other.dataset.key === key);
    if (event.key in moves && words.length) {
      const index = moves[event.key]();
      select(event.shiftKey ? anchor : index, index);
    } else if (event.key === "Escape") select(focus, focus);
    else if (event.key === "Enter" && next && !isDirty) next.click();
    else if (event.key === "Enter") form.requestSubmit();
    else if (button) setLabel(button.dataset.label);
    else return;
    event.preventDefault();
  });

  text.addEventListener("click", (event) => {
    const index = words.indexOf(event.target);
    if (index < 0) return;
    const span = spanAt(words[index]);
    const isExtension = event.shiftKey || (canExtend && !span);
    canExtend = !isExtension && !span;
    if (isExtension) select(anchor, index);
    else if (!span) select(index, index);
    else {
      const inside = words.filter((word) => overlaps(span, startOf(word), endOf(word)));
      select(words.indexOf(inside[0]), words.indexOf(inside.at(-1)));
    }
  });

  for (const button of buttons)
    button.addEventListener("click", () => {
      setLabel(button.dataset.label);
      // Enter then saves, and does not set the label again
      text.focus({ preventScroll: true });
    });
  form.addEventListener("submit", () => {
    isDirty = false;
    form.elements.spans.value = JSON.stringify(spans);
  });
  window.addEventListener("beforeunload", (event) => isDirty && event.preventDefault());
  text.focus();
  select(0, 0);
}

if (text) startLabelling();
