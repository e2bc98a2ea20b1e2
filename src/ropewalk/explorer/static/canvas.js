// What a chart has besides its lines, drawn on uPlot's canvas: zones and bands behind them, marks before them.

import { INK } from "ropewalk/looks.js";
import { across } from "ropewalk/marks.js";

export const FONT = "12px system-ui, 'Noto Sans CJK JP', ropewalk, sans-serif";

/** Draw within the axes. */
function inside({ ctx: pen, bbox }, draw) {
  pen.save();
  pen.beginPath();
  pen.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  pen.clip();
  pen.font = FONT.replace("12px", `${11 * devicePixelRatio}px`);
  pen.lineWidth = devicePixelRatio;
  pen.textAlign = "left";
  draw(pen, bbox, devicePixelRatio);
  pen.restore();
}

export const behind = (u, { zones = [], series, xs }) =>
  inside(u, (pen, bbox, ratio) => {
    for (const { from, to, color, label } of zones) {
      const [left, right] = [from, to].map((x) => u.valToPos(x, "x", true));
      pen.fillStyle = color;
      pen.fillRect(left, bbox.top, right - left, bbox.height);
      const room = Math.min(right, bbox.left + bbox.width) - Math.max(left, bbox.left);
      pen.fillStyle = INK;
      pen.textAlign = "center";
      if (label && pen.measureText(label).width + 6 * ratio < room)
        pen.fillText(label, Math.max(left, bbox.left) + room / 2, bbox.top + 12 * ratio);
    }
    for (const { low, high, color } of series) {
      if (!low) continue;
      const there = xs.flatMap((x, n) => (low[n] == null || high[n] == null ? [] : [[x, low[n], high[n]]]));
      const to = (x, y) => pen.lineTo(u.valToPos(x, "x", true), u.valToPos(y, "y", true));
      pen.fillStyle = `${color}30`;
      pen.beginPath();
      for (const [x, , y] of there) to(x, y);
      for (const [x, y] of there.reverse()) to(x, y);
      pen.fill();
    }
  });

export const before = (u, { marks = [] }) =>
  inside(u, (pen, bbox, ratio) => {
    const line = (...ends) => {
      pen.setLineDash([4 * ratio, 3 * ratio]);
      pen.strokeStyle = INK;
      pen.lineWidth = ratio;
      pen.beginPath();
      for (const [x, y] of ends) pen.lineTo(x, y);
      pen.stroke();
    };
    const words = (text, x, y) => {
      pen.setLineDash([]);
      pen.lineJoin = "round";
      pen.strokeStyle = "#ffffffd0"; // lines that pass behind do not strike it out
      pen.lineWidth = 4 * ratio;
      pen.strokeText(text, x, y);
      pen.fillStyle = INK;
      pen.fillText(text, x, y);
    };
    const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
    for (const { x, label } of marks.filter((m) => m.x != null)) {
      const at = u.valToPos(x, "x", true),
        size = pen.measureText(label).width;
      line([at, bbox.top], [at, bottom]);
      words(label, at + size + 8 * ratio > right ? at - size - 4 * ratio : at + 4 * ratio, bbox.top + 12 * ratio);
    }
    const level = across(marks, (y) => u.valToPos(y, "y"));
    for (const { y } of level) line(...[bbox.left, right].map((x) => [x, u.valToPos(y, "y", true)]));
    for (const { y, label, right: far } of level) {
      const x = far ? right - pen.measureText(label).width - 4 * ratio : bbox.left + 4 * ratio;
      words(label, x, u.valToPos(y, "y", true) - 4 * ratio);
    }
  });
