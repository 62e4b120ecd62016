// player.js draws player.html. player.c, compiled as PLAYER_WASM in player_wasm.js, computes the
// data. The module is text, because a page that is opened from a file may not fetch().
let C;                                             // the functions of player.c
const at = {};                                     // the values of the sliders
const byId = id => document.getElementById(id);
function put(id, svg, width, height) {
  byId(id).innerHTML = svg;
  byId(id).setAttribute('viewBox', `0 0 ${width} ${height}`);
}
const rect = (kind, x, y, w, h) => `<rect class="${kind}" x="${x.toFixed(2)}" y="${y}" width="${
    Math.max(w, 0).toFixed(2)}" height="${h}"/>`;
const text = (x, y, what, kind = '') =>
    `<text class="${kind}" x="${x.toFixed(1)}" y="${y}">${what}</text>`;
const WIDTH = 960, LEFT = 70;

function bytes(n) {                                // as in the papers, a GB has 10^9 bytes
  const unit = ['bytes', 'KB', 'MB', 'GB', 'TB', 'PB'];
  let i = 0;
  while (n >= 999.5 && i < 5) { n /= 1000; i++; }
  return `${i ? n.toPrecision(3) : n} ${unit[i]}`;
}

// ---- settings: {name, label, start}, and a slider's range [least, most] or values, or texts ----
function settings(id, list, changed) {
  for (const s of list) {
    const label = document.createElement('label'), value = document.createElement('output');
    const values = s.values || s.texts ||
        Array.from({ length: s.range[1] - s.range[0] + 1 }, (_, i) => s.range[0] + i);
    const input = document.createElement(s.texts ? 'select' : 'input');
    if (s.texts) input.append(...s.texts.map((t, i) => new Option(t, i)));
    else Object.assign(input, { type: 'range', min: 0, max: values.length - 1, step: 1 });
    input.id = `set-${s.name}`;
    input.value = (s.texts || values).indexOf(s.start);
    const read = () => {
      at[s.name] = s.texts ? +input.value : values[input.value];
      value.textContent = s.texts ? '' : at[s.name];
    };
    input.addEventListener('input', () => { read(); changed(); });
    read();
    label.append(s.label + ' ', value, input);
    byId(id).append(label);
  }
}

// ---- schedules: one schedule, or two in one scale of time ----
// shown[slot]: {slot, schedule, chunks, end, ops}, with why if the schedule cannot be played.
// ops[stage] is a list of {what, k, chunk, start, end, leaves, arrives, to}; k is the micro-batch,
// and leaves, arrives and to describe the op's message. Times are in units.
let shown = [], end, now = 0, playing = false, last;
const NAMES = [
  'naive', 'GPipe', '1F1B', 'interleaved, 2 chunks', 'zero bubble (ZB-H1)',
  'zero bubble, 2p in flight', 'PipeDream', 'PipeDream-2BW'
];
const ROW = 20, LANE = 9, STRIP = 26, HEIGHT = ROW + LANE + STRIP + 12, TOP = 22;
const x_of = t => LEFT + t / end * (WIDTH - LEFT - 10);

function played(slot, schedule) {
  const ends = C.player_play(slot, schedule, at.p, at.m, at.t_f, at.t_b, at.link);
  const why = {
    '-1': 'the lists deadlock',
    '-2': 'm must be a multiple of p',
    '-3': 'm must be at least p'
  }[ends];
  if (why) return { slot, schedule, why, end: 0, ops: [] };
  const ops = [];
  for (let i = 0; i < at.p; i++) {
    ops.push([]);
    for (let k = 0; k < C.player_ops(slot, i); k++) {
      const what = 'FBIWU'[C.player_op_what(slot, i, k)],
            arrives = C.player_op_arrives(slot, i, k) / 2;
      if (what === 'U') continue;
      ops[i].push({
        what,
        k: C.player_op_micro_batch(slot, i, k),
        chunk: C.player_op_chunk(slot, i, k),
        start: C.player_op_start(slot, i, k) / 2,
        end: C.player_op_end(slot, i, k) / 2,
        arrives,
        leaves: arrives - at.link,
        to: C.player_op_to(slot, i, k)
      });
    }
  }
  return { slot, schedule, chunks: C.player_chunks(slot), end: ends / 2, ops };
}
const in_flight = (s, i, t) => C.player_in_flight(s.slot, i, Math.floor(2 * t)) / s.chunks;
const most_kept = (s, i) => Math.max(...s.ops[i].map(o => in_flight(s, i, o.start)));

function play_schedule() {
  shown = [played(0, at.schedule)];
  if (at.beside > 0) shown.push(played(1, at.beside - 1));
  end = Math.max(...shown.map(s => s.end), 1);
  byId('time').max = end;
  now = Math.min(now, end);
  byId('summary').innerHTML = shown.map(summary).join('<br>');
  draw_timeline();
  draw_now();
  remember();
}
function summary(s) {
  if (s.why) return `<b>${NAMES[s.schedule]}</b>: ${s.why}.`;
  const idle = 1 - C.player_busy(s.slot) / 2 / (at.p * s.end),
        messages = s.ops.flat().filter(o => o.to >= 0).length;
  return `<b>${NAMES[s.schedule]}</b>: a step takes <b>${
             s.end} units</b>; the stages are idle for <b>${(100 * idle).toFixed(1)} %</b>
    of it (the bubble); ${messages} messages; micro-batches in flight at most, stage by stage:
    <b>${s.ops.map((_, i) => most_kept(s, i)).join(', ')}</b>.` +
      (s.schedule === 6 ? ' Every micro-batch is a mini-batch here, with its own update.' : '') +
      (s.schedule === 7 ? ' Two batches of m micro-batches are shown.' : '');
}

function draw_timeline() {
  let svg = '', top = 0;
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find(u => end / u <= 24) || 2000;
  for (const s of shown) {
    svg +=
        text(LEFT, top + 14, s.why ? `${NAMES[s.schedule]}: ${s.why}` : NAMES[s.schedule], 'bold');
    s.ops.forEach((ops, i) => { svg += stage_row(s, i, ops, top + TOP + i * HEIGHT); });
    top += TOP + s.ops.length * HEIGHT;
  }
  for (let t = 0; t <= end; t += every) svg += text(x_of(t), top + 10, t, 'mid small');
  svg += `<rect id="veil" x="0" y="0" width="0" height="${top}"/><line id="cursor" y1="0" y2="${
      top}"/>`;
  put('timeline', svg, WIDTH, top + 16);
}
// Returns the row of a stage: its ops, its messages below them, and the number of micro-batches in
// flight.
function stage_row(s, i, ops, y) {
  let svg = text(LEFT - 10, y + 15, `stage ${i}`, 'end') +
      rect('ground', LEFT, y, x_of(end) - LEFT, ROW) +
      rect('ground', LEFT, y + ROW + 1, x_of(end) - LEFT, LANE);
  const base = y + HEIGHT - 10,
        moments = [...new Set(ops.flatMap(o => [o.start, o.end]))].sort((a, b) => a - b);
  let strip = `M${LEFT} ${base}`;
  for (const t of moments)
    strip += `H${x_of(t).toFixed(2)}V${
        (base - Math.min(1, in_flight(s, i, t) / at.m) * STRIP).toFixed(2)}`;
  svg += `<path class="A" d="${strip}H${x_of(end).toFixed(2)}V${base}Z"/>`;
  for (const o of ops) {
    const x = x_of(o.start), w = x_of(o.end) - x, second = o.chunk > 0 ? ' second' : '';
    svg += rect(o.what + second, x, y, w, ROW);
    const label = w < 26 ? `${o.k}` : o.what + o.k;
    if (w > 5 + 7 * label.length) svg += text(x + w / 2, y + 14.5, label, 'on');
    if (o.to >= 0 && at.link)
      svg += rect('M', x_of(o.leaves), y + ROW + 1, x_of(o.arrives) - x_of(o.leaves), LANE);
  }
  return svg;
}

// Draws the stages of the first schedule at the time `now`: boxes, the kept micro-batches below the
// boxes, and the messages between the boxes.
function draw_now() {
  const s = shown[0], gap = 44, w = (WIDTH - 20 - (at.p - 1) * gap) / at.p, box = Math.min(w, 150),
        width = at.p * (box + gap) - gap;
  const left = (WIDTH - width) / 2, x0 = i => left + i * (box + gap), square = 16,
        row = Math.floor((box + 2) / (square + 2));
  let svg = '', moving = '', tallest = 0;
  for (let i = 0; i < s.ops.length; i++) {
    const ops = s.ops[i], doing = ops.find(o => o.start <= now && now < o.end), x = x0(i),
          mid = x + box / 2;
    const n = in_flight(s, i, now);
    svg += text(mid, 14, `stage ${i}`, 'mid') + rect(doing ? doing.what : 'ground', x, 20, box, 54);
    svg += doing ? text(mid, 50, doing.what + doing.k, 'on large') +
                   rect('done', x, 68, box * (now - doing.start) / (doing.end - doing.start), 6)
                 : text(mid, 51, now >= s.end ? 'done' : 'idle', 'mid faint');
    const kept = ops.filter(
        o => o.what === 'F' && o.start <= now &&
            !ops.some(
                b => 'BW'.includes(b.what) && b.k === o.k && b.chunk === o.chunk && b.end <= now));
    kept.forEach((o, j) => {
      const sx = x + (j % row) * (square + 2), sy = 82 + Math.floor(j / row) * (square + 2);
      svg +=
          rect('kept', sx, sy, square, square) + text(sx + square / 2, sy + 12, o.k, 'mid small');
    });
    const tall = 82 + Math.ceil(at.m * s.chunks / row) * (square + 2) + 12;
    tallest = Math.max(tallest, tall);
    svg += text(mid, tall, `${n} in flight`, 'mid small') +
        text(mid, tall + 14, bytes(n * C.player_stage_kept(at.p, i) * at.s * at.b * at.e),
             'mid small');
    for (const o of ops) {
      if (o.to < 0 || now < o.end || now >= o.arrives || Math.abs(o.to - i) !== 1) continue;
      const along = Math.max(0, (now - o.leaves) / at.link), right = o.to > i;
      const from = right ? x + box + 9 : x - 9, to = right ? x + box + gap - 9 : x - gap + 9,
            y = right ? 34 : 60;
      moving +=
          `<circle class="M" cx="${(from + (to - from) * along).toFixed(1)}" cy="${y}" r="9"/>` +
          text(from + (to - from) * along, y + 4, o.k, 'white');
    }
    for (const y of i + 1 < at.p ? [34, 60] : [])
      svg +=
          `<line class="link" x1="${x + box + 3}" x2="${x + box + gap - 3}" y1="${y}" y2="${y}"/>`;
  }
  put('stages', svg + moving, WIDTH, (tallest || 40) + 20);
  const x = x_of(now);
  byId('veil').setAttribute('x', x);
  byId('veil').setAttribute('width', WIDTH - x);
  byId('cursor').setAttribute('x1', x);
  byId('cursor').setAttribute('x2', x);
  byId('time').value = now;
  byId('clock').textContent = `${Math.floor(now)} of ${end} units`;
}

function tick(t) {
  if (!playing) return;
  now = Math.min(end, now + (t - (last ?? t)) / 1000 * Math.max(2, end / 25));
  last = t;
  draw_now();
  if (now >= end) pause();
  else requestAnimationFrame(tick);
}
function pause() { playing = false; byId('play').textContent = 'play'; }
function play() {
  if (playing) return pause();
  if (now >= end) now = 0;
  playing = true;
  last = undefined;
  byId('play').textContent = 'pause';
  requestAnimationFrame(tick);
}
// Returns the times at which an op or a message begins or ends.
const moments = () =>
    shown.flatMap(s => s.ops.flat().flatMap(o => [o.start, o.end, o.leaves, o.arrives]));
function go_to(t) { pause(); now = t; draw_now(); }
const step = () => go_to(Math.min(...moments().filter(t => t > now), end));
const back = () => go_to(Math.max(...moments().filter(t => t < now), 0));
function buttons() {
  byId('play').addEventListener('click', play);
  byId('step').addEventListener('click', step);
  byId('start').addEventListener('click', () => go_to(0));
  byId('time').addEventListener('input', () => go_to(+byId('time').value));
  document.addEventListener('keydown', e => {
    if (e.altKey || e.ctrlKey || e.metaKey || /INPUT|SELECT|BUTTON|TEXTAREA/.test(e.target.tagName))
      return;
    const does = {
      ' ': play,
      ArrowRight: step,
      ArrowLeft: back,
      Home: () => go_to(0),
      End: () => go_to(end)
    }[e.key];
    if (does) {
      e.preventDefault();
      does();
    }
  });
}

// ---- the page's address holds the settings: player.html?embed#schedule=2&beside=2&p=4 ----
const SHARED = ['schedule', 'beside', 'p', 'm', 't_f', 't_b', 'link'];
function remember() {
  const state = '#' + SHARED.map(name => `${name}=${at[name]}`).join('&');
  try {
    history.replaceState(null, '', state);
  } catch (e) { /* a page from a file may not change its address */
  }
}
const asked = location.hash.slice(1);              // read before remember() writes the address
function recall() {
  for (const part of asked.split('&')) {
    const [name, value] = part.split('='), input = byId(`set-${name}`);
    if (!SHARED.includes(name) || !input || !/^\d+$/.test(value ?? '')) continue;
    const least = { p: 1, m: 1, t_f: 1, t_b: 1 }[name] ?? 0;
    input.value = +value - least;
    input.dispatchEvent(new Event('input'));
  }
}

// ---- bars: rows of {name, parts: [[class, bytes]], chosen} ----
function bars(id, rows, note) {
  const most = Math.max(...rows.map(r => r.parts.reduce((sum, part) => sum + part[1], 0))),
        left = 150, room = WIDTH - left - 110;
  let svg = '';
  rows.forEach((r, i) => {
    const y = 6 + i * 40;
    let x = left, sum = 0;
    svg += text(left - 12, y + 20, r.name, r.chosen ? 'end bold' : 'end') +
        `<g class="${r.chosen ? '' : 'pale'}">`;
    for (const [kind, n] of r.parts) {
      const w = n / most * room;
      svg += rect(kind, x, y, w, 30);
      if (w > 62) svg += text(x + w / 2, y + 19.5, bytes(n), 'on');
      x += w;
      sum += n;
    }
    svg += '</g>' + text(x + 8, y + 20, bytes(sum), r.chosen ? 'bold' : '');
  });
  const x = left + 80e9 / most * room;             // the line shows a full device with 80 GB
  if (x < WIDTH - 110)
    svg += `<line class="full" x1="${x}" x2="${x}" y1="0" y2="${rows.length * 40 + 4}"/>` +
        text(x, rows.length * 40 + 16, '80 GB', 'mid small');
  if (note) svg += text(left, rows.length * 40 + 34, note, 'small');
  put(id, svg, WIDTH, rows.length * 40 + 40);
}
function draw_memory() {
  const h = Math.max(1, Math.round(at.h / at.a)) * at.a; // a head has a whole number of columns
  C.player_model(at.L, h, at.a, at.s, 50257, at.dropout);
  byId('set-h').previousSibling.textContent = h;
  const parameters = C.player_parameters(), classes = ['F', 'B', 'A'];
  bars(
      'zero-bars',
      ['data parallel', 'ZeRO-1', 'ZeRO-2', 'ZeRO-3'].map(
          (name, stage) => ({
            name,
            chosen: stage === at.stage,
            parts: classes.map((c, i) => [c, C.player_state(stage, at.N, i, at.mixed)])
          })),
      `${(parameters / 1e9).toPrecision(3)} billion parameters, ${
          at.mixed ? '2 + 2 + 12' : '4 + 4 + 8'} bytes each, on ${at.N} ranks`);
  const parts = how => ['F', 'A', 'U', 'C'].map(
      (c, i) => [c, C.player_kept(how, i, at.t) * at.s * at.b * at.e]);
  bars(
      'recompute-bars',
      ['none', 'selective', 'full'].map(
          (name, how) => ({ name, chosen: how === at.how, parts: parts(how) })),
      `${at.s * at.b} tokens, ${at.e} bytes an element, t = ${at.t}: rank 0 has ${
          Math.ceil(at.a / at.t)} of ${at.a} heads`);
  if (shown.length) draw_now();
}

WebAssembly.instantiate(Uint8Array.from(atob(PLAYER_WASM), c => c.charCodeAt(0)))
    .then(({ instance }) => {
      C = instance.exports;
      const power = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => 2 ** (from + i));
      settings(
          'schedule-sliders',
          [
            { name: 'schedule', label: 'schedule', texts: NAMES, start: '1F1B' },
            { name: 'beside', label: 'beside it', texts: ['none', ...NAMES], start: 'none' },
            { name: 'p', label: 'stages p', range: [1, 8], start: 4 },
            { name: 'm', label: 'micro-batches m', range: [1, 24], start: 8 },
            { name: 't_f', label: 'forward t_f', range: [1, 12], start: 2 },
            { name: 't_b', label: 'backward t_b', range: [1, 12], start: 4 },
            { name: 'link', label: 'a message', range: [0, 12], start: 1 }
          ],
          play_schedule);
      settings(
          'model-sliders',
          [
            { name: 'L', label: 'layers L', range: [8, 128], start: 48 }, {
              name: 'h',
              label: 'width h',
              values: Array.from({ length: 64 }, (_, i) => 256 * (i + 1)),
              start: 6144
            },
            {
              name: 'a',
              label: 'heads a',
              values: [8, 12, 16, 24, 32, 48, 64, 96, 128],
              start: 64
            },
            { name: 's', label: 'positions s', values: power(8, 14), start: 2048 },
            { name: 'b', label: 'sequences b', range: [1, 32], start: 4 },
            { name: 'e', label: 'bytes of an activation', values: [2, 4], start: 2 },
            { name: 'dropout', label: 'dropout', texts: ['no', 'yes'], start: 'yes' }
          ],
          draw_memory);
      settings(
          'zero-sliders',
          [
            { name: 'stage', label: 'stage', range: [0, 3], start: 1 },
            { name: 'N', label: 'ranks N', values: power(0, 10), start: 64 }, {
              name: 'mixed',
              label: 'precision',
              texts: ['fp32: 4 + 4 + 8', 'mixed: 2 + 2 + 12'],
              start: 'mixed: 2 + 2 + 12'
            }
          ],
          draw_memory);
      settings(
          'recompute-sliders',
          [
            {
              name: 'how',
              label: 'recomputation',
              texts: ['none', 'selective', 'full'],
              start: 'selective'
            },
            { name: 't', label: 'tensor-parallel ranks t', values: power(0, 3), start: 8 }
          ],
          draw_memory);
      buttons();
      draw_memory();
      play_schedule();
      byId('player').hidden = false; // after an error the pictures remain
      byId('pictures').hidden = true;
      document.body.classList.toggle('embedded', location.search === '?embed');
      if (asked.includes('='))
        recall();
      else if (asked)
        byId(asked)?.scrollIntoView();
      if (location.search === '?embed') go_to(end); // show the whole step at first
    });
