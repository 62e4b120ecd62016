// planner.js draws planner.html. planner.c, compiled as PLANNER_WASM, computes all data. The module
// is base64 text in the page, because a page that is opened from a file may not fetch().
const byId = id => document.getElementById(id);
const rect = (kind, x, y, w, h) => `<rect class="${kind}" x="${x.toFixed(2)}" y="${y}" width="${
    Math.max(w, 0).toFixed(2)}" height="${h}"/>`;
const label = (x, y, what, kind = '') =>
    `<text class="${kind}" x="${x.toFixed(1)}" y="${y}">${what}</text>`;
const WIDTH = 960;
function put(id, svg, height) {
  byId(id).innerHTML = svg;
  byId(id).setAttribute('viewBox', `0 0 ${WIDTH} ${height}`);
}
const three = x => x >= 999.5 ? x.toFixed(0) : x.toPrecision(3);
function amount(n, units, show = three) {
  let i = 0;
  while (n >= 999.5 && i + 1 < units.length) { n /= 1000; i++; }
  return `${n ? show(n) : 0} ${units[i]}`;
}
const BYTES = ['bytes', 'KB', 'MB', 'GB', 'TB', 'PB'];     // as in the papers, a GB has 10^9 bytes
const bytes = n => amount(n, BYTES);
const seconds = s => s < 1 ? amount(s * 1e6, ['µs', 'ms']) : `${three(s)} s`;
const percent = x => `${(100 * x).toFixed(1)}%`;

// ---- the module: the page computes the chosen layout, a worker computes all layouts ----
let C, module, settings, memory, presets = {}, plans, worker; // C: the functions of planner.c
const said = (C, at) => {
  const all = new Uint8Array(C.memory.buffer);
  return JSON.parse(new TextDecoder().decode(all.subarray(at, all.indexOf(0, at))));
};
const place = name => settings.findIndex(s => s.name === name);
const get = name => C.planner_get(place(name));
const set = (name, value) => C.planner_set(place(name), value);
const laid = () => settings.filter(s => s.key); // settings with a key describe the layout
const mesh = () =>
    laid().slice(0, laid().findIndex(s => s.key === 'micro_batch')); // dp, tp, pp, ...
const of_layout = (s, layout) =>
    s.key && typeof layout[s.key] === 'string' ? s.names.indexOf(layout[s.key]) : +layout[s.key];
const number_text = value => Number.isInteger(value) ? `${value}` : `${+value.toPrecision(6)}`;
const shown = (s, value) => s.names.length ? s.names[value] : number_text(value);

function search() {
  worker?.terminate();
  plans = undefined;
  byId('searching').hidden = false;
  byId('reason').textContent = '';
  byId('rows').hidden = true;                              // hides the previous result
  byId('table').replaceChildren();
  byId('layouts').replaceChildren();
  const work = said => {
    onmessage = async ({ data }) => {
      const page = { progress: (done, all) => postMessage({ done, all }) };
      const C = (await WebAssembly.instantiate(data.module, { page })).exports;
      C._initialize?.();
      data.values.forEach((v, i) => C.planner_set(i, v));
      for (const cp of [1, 0])
        postMessage({ plans: said(C, C.planner_search(cp)), last: !cp }); // cp = 1 is faster
    };
  };
  worker = new Worker(
      URL.createObjectURL(new Blob([`(${work})(${said})`], { type: 'text/javascript' })));
  worker.onmessage = ({ data }) => {
    if (!data.plans) {
      Object.assign(byId('progress'), { value: data.done, max: data.all });
      return;
    }
    plans = data.plans;
    byId('searching').hidden = data.last;
    const best = fastest;
    if (best && plans.layouts.length)
      load(plans.layouts[0]);
    else
      draw();
    fastest = best && !data.last;
    document.body.dataset.layouts = plans.layouts.length;
  };
  worker.postMessage({ module, values: settings.map(s => get(s.name)) });
}

// ---- the page's address holds the state, as options of a command ----
let fastest = false; // whether to load the fastest layout when the search knows it
function read_address() {
  const asked = new URLSearchParams(location.hash.slice(1));
  fastest = !laid().some(s => asked.has(s.name));
  for (const s of chosen())
    set(s.name,
        Math.max(s.names.indexOf(asked.get(s.name)), 0)); // a preset sets other options, too
  for (const s of settings) presets[s.name] = get(s.name);
  set('gpus', 1024);
  for (const s of laid()) set(s.name, s.key === 'micro_batch' || !s.names.length ? 1 : 0);
  for (const s of settings) {
    const text = asked.get(s.name), value = s.names.length ? s.names.indexOf(text) : Number(text);
    if (text && value >= 0 && (s.key || !s.names.length)) set(s.name, value);
  }
}
const chosen = () => settings.filter(s => s.names.length && !s.key);   // model, cluster, ...
const given = () =>
    settings
        .filter(
            s => s.key || s.names.length || s.name === 'gpus' || get(s.name) !== presets[s.name])
        .map(s => [s.name, shown(s, get(s.name))]);
function write_address() {
  history.replaceState(
      null, '', '#' + given().map(([name, value]) => `${name}=${value}`).join('&'));
  const degrees = mesh().map(s => s.name), explain = degrees.map(get).join(',');
  const options = given().filter(([name]) => !degrees.includes(name))
      .map(([name, value]) => `--${name} ${value}`);
  byId('command').textContent = `make run-08-plan ARGS="${options.join(' ')} --explain ${explain}"`;
}

// ---- sliders and lists ----
const TEXT = {
  gpus: 'GPUs',
  batch: 'batch',
  layers: 'blocks',
  width: 'features of a token',
  heads: 'attention heads',
  context: 'tokens of a sequence',
  vocab: 'vocabulary entries',
  memory: 'GB of a GPU',
  peak: 'TFLOP/s of a GPU',
  attention: 'attention',
  inside: 'GB/s inside a node',
  between: 'GB/s between nodes',
  node: 'GPUs of a node',
  rails: 'network cards of a node',
  margin: 'GB not for the model',
  precision: 'precision',
  dp: 'dp, replicas',
  tp: 'tp, tensor parallel',
  pp: 'pp, stages',
  cp: 'cp, parts of a sequence',
  'micro-batch': 'b, of a micro-batch',
  chunks: 'v, chunks of a stage',
  balance: 'parts of equal',
  zero: 'stage of ZeRO',
  'sequence-parallel': 'sequence parallelism',
  recompute: 'recomputation'
};
const RANGE = {
  gpus: [1, 16384],
  batch: [1, 8192],
  layers: [1, 192],
  width: [256, 32768],
  heads: [1, 256],
  context: [256, 65536],
  vocab: [256, 262144],
  memory: [8, 384],
  peak: [16, 4096],
  inside: [1, 2048],
  between: [1, 512],
  node: [1, 128],
  rails: [1, 128],
  margin: [1, 32]
};
const steps = ([least, most]) => { // powers of two, and half way between them
  const all = [];
  for (let x = 1; x <= most; x *= 2) all.push(x, ...x > 1 ? [x * 1.5] : []);
  return all.filter(x => x >= least && x <= most);
};
const moves = {};                                          // functions that show a setting's value
function control(s) {
  const box = document.createElement('label'), id = `set-${s.name}`;
  const named = document.createElement('span');
  named.textContent = TEXT[s.name] ?? s.name;
  box.append(named);
  if (s.names.length && !s.key) {                          // the setting is a list of names
    const choose = Object.assign(document.createElement('select'), { id });
    choose.append(...s.names.map((name, i) => new Option(name, i)));
    choose.addEventListener('input', () => changed(s, +choose.value));
    moves[s.name] = () => { choose.value = get(s.name); };
    box.append(choose);
    return box;
  }
  const slider =
      Object.assign(document.createElement('input'), { id, type: 'range', min: 0, step: 1 });
  if (s.key) { // the slider has the values that occur in the known layouts
    const value = document.createElement('output');
    let values = [];
    slider.addEventListener('input', () => {
      if (values[slider.value] !== get(s.name)) load(nearest(s, values[slider.value]));
    });
    moves[s.name] = () => {
      const now = get(s.name);
      values = [...new Set([now, ...plans ? plans.layouts.map(l => of_layout(s, l)) : []])].sort(
          (a, b) => a - b);
      slider.max = values.length - 1;
      slider.value = values.indexOf(now);
      slider.disabled = values.length < 2;
      value.textContent = shown(s, now);
    };
    named.append(' ', value);
    box.append(slider);
    return box;
  }
  const values = steps(RANGE[s.name]),
        typed =
            Object.assign(document.createElement('input'), { type: 'number', min: 0, step: 'any' });
  typed.setAttribute('aria-label', `${TEXT[s.name]}, exactly`);
  slider.max = values.length - 1;
  slider.addEventListener('input', () => changed(s, values[slider.value]));
  typed.addEventListener('change', () => { if (typed.value > 0) changed(s, +typed.value); });
  moves[s.name] = () => {
    const now = get(s.name), far = x => Math.abs(Math.log(x / now));
    typed.value = shown(s, now);
    slider.value = values.reduce((best, x, i) => far(x) < far(values[best]) ? i : best, 0);
  };
  named.append(' ', typed);
  box.append(slider);
  return box;
}
let later;
function changed(s, value) {                               // the user changes the task
  const before = settings.map(o => get(o.name));
  set(s.name, value);
  if (s.names.length)
    settings.forEach((o, i) => {
      if (get(o.name) !== before[i]) presets[o.name] = get(o.name);
    });
  fastest = s.names.length > 0 || 'refused' in said(C, C.planner_layout());
  clearTimeout(later);
  later = setTimeout(search, 150);
  worker?.terminate();
  plans = undefined;
  draw();
}

// Returns the layout with this value that is most like the chosen layout. Settings late in
// GIVES_WAY change last.
const GIVES_WAY =
    ['balance', 'dp', 'chunks', 'pp', 'micro-batch', 'sequence-parallel', 'zero', 'cp', 'tp', 'recompute'];
function nearest(s, value) {
  const others = laid().filter(o => o !== s);
  const distance = l => others.reduce(
      (sum, o) => sum + (of_layout(o, l) === get(o.name) ? 0 : 2 ** GIVES_WAY.indexOf(o.name)), 0);
  return plans.layouts.filter(l => of_layout(s, l) === value)
      .map(l => [distance(l), l])
      .reduce((a, b) => b[0] < a[0] ? b : a)[1];
}
function load(layout) {
  fastest = false;
  for (const s of laid()) set(s.name, of_layout(s, layout));
  draw();
}

// ---- the chosen layout ----
const MEMORY = ['F', 'B', 'A', 'U', 'C', 'M'];              // classes of book.css: colours
const TIME = [
  ['F', 'computing', 'computing'], ['U', 'tp_time', 'sums over tp'],
  ['M', 'cp_time', 'waits for the ring'], ['C', 'dp_time', 'ZeRO over dp, in each micro-batch'],
  ['B', 'end_time', 'sum over dp and update'], ['ground', 'idle', 'bubble']
];
function bar(id, parts, name, full, show) {                // parts: [class, amount, name]
  const sum = parts.reduce((s, p) => s + p[1], 0), most = Math.max(sum, full) * 1.005,
        x_of = v => 70 + v / most * (WIDTH - 72);
  let at = 0, svg = label(0, 31, name) + rect('ground', 70, 8, x_of(full) - 70, 36);
  for (const [kind, n] of parts) {
    const w = x_of(at + n) - x_of(at);
    svg += rect(kind, x_of(at), 8, w, 36);
    if (w > 66) svg += label(x_of(at) + w / 2, 30.5, show(n), kind === 'ground' ? 'mid' : 'on');
    at += n;
  }
  if (full && sum > full) svg += rect('beyond', x_of(full), 8, x_of(sum) - x_of(full), 36);
  if (full) {
    const right = x_of(full) > WIDTH - 60;
    svg += `<line class="full" x1="${x_of(full)}" x2="${x_of(full)}" y1="2" y2="50"/>` +
           label(x_of(full), 63, `${show(full)} usable`, right ? 'end small' : 'mid small');
  }
  put(id, svg, full ? 68 : 50);
  byId(id.replace('bar', 'key')).innerHTML =
      parts.filter(p => p[1] > 0)
          .map(([kind, n, name]) => `<i><span class="${kind}"></span>${name} <b>${show(n)}</b></i>`)
          .join(' ');
}
function tile(value, name, kind = '') {
  return `<div class="${kind}"><b>${value}</b>${name}</div>`;
}
// Returns the bytes of a GPU that a layout may fill.
function usable_bytes() {
  return (get('memory') - get('margin')) * 1e9;
}
function draw_layout() {
  const answer = said(C, C.planner_layout()), l = answer.layout, usable = usable_bytes();
  for (const id of ['memory-bar', 'time-bar', 'memory-key', 'time-key', 'sent', 'tiles'])
    byId(id).style.display = l ? '' : 'none';
  byId('verdict').className = l?.fits ? 'fits' : 'unfit';
  if (!l && fastest && !plans) { byId('verdict').textContent = ''; return; }
  if (!l) {
    byId('verdict').innerHTML = `<b>This layout is impossible:</b> ${answer.refused}.`;
    return;
  }
  const first = plans?.layouts[0]?.fits && same(l, plans.layouts[0]);
  byId('verdict').innerHTML = !l.fits ? `<b>Does not fit:</b> ${l.limit}.` :
      `<b>Fits.</b> ${first ? 'It is the fastest layout that fits.' : ''}`;
  byId('tiles').innerHTML = tile(bytes(l.memory), `of ${bytes(usable)} usable`, l.fits ? '' : 'unfit') +
      tile(seconds(l.step), 'a step') + tile(percent(l.mfu), 'MFU') + tile(percent(l.hfu), 'HFU') +
      tile(percent(l.bubble), 'bubble') +
      tile(amount(answer.parameters, ['', 'thousand', 'million', 'billion', 'trillion']),
           'parameters');
  bar('memory-bar', memory.map((name, i) => [MEMORY[i], l[name], name]), 'memory', usable, bytes);
  bar('time-bar', TIME.map(([kind, key, name]) => [kind, l[key] ?? 0, name]), 'time', 0, seconds);
  byId('sent').innerHTML =
      `Sent per step, by a rank of the stage that sends most: <b>${bytes(l.tp_bytes)}</b> over tp,
    ${l.cp_bytes ? `<b>${bytes(l.cp_bytes)}</b> over cp,` : ''} <b>${
          bytes(l.pp_bytes)}</b> to other stages, <b>${bytes(l.dp_bytes)}</b> over dp, <b>${
          bytes(l.tied_bytes)}</b> for the embedding that first
    and last stage share.`;
}

// ---- all layouts ----
const same = (a, b) => laid().every(s => a[s.key] === b[s.key]);
const is_set = l => laid().every(s => of_layout(s, l) === get(s.name));
const named = l => laid()
                       .filter(s => s.key !== 'sequence' && s.key !== 'balanced')
                       .map(
                           s => `${
                               s.key === 'micro_batch' ? 'b' :
                                   s.key === 'chunks'  ? 'v' :
                                                         s.key} ${l[s.key]}`)
                       .join(', ') +
    (l.sequence ? ', sp' : '') + (l.balanced ? ', parts of equal cost' : '');
function draw_table() {
  const seen = new Set(), rows = [];
  for (const l of plans?.layouts ?? []) {
    const which = mesh().map(s => l[s.key]).join();
    if (rows.length < 10 && l.fits && !seen.has(which)) { seen.add(which); rows.push(l); }
  }
  const short = { micro_batch: 'b', chunks: 'v', zero: 'ZeRO', sequence: 'sp', balanced: 'parts' };
  byId('reason').textContent = plans ? plans.reason : '';
  byId('rows').hidden = !rows.length;
  byId('table').innerHTML = !rows.length ?
      '' :
      `<thead><tr><th></th>${laid().map(s => `<th>${short[s.key] ?? s.key}</th>`).join('')}
    <th>GB</th><th>bubble</th><th>step</th><th>MFU</th></tr></thead>` +
          rows.map(
                  (l, i) => `<tr class="${is_set(l) ? 'here' : ''}">
    <td><button type="button" aria-label="load layout ${i + 1}">${i + 1}</button></td>
    ${
                      laid()
                          .map(
                              s => `<td>${
                                  typeof l[s.key] === 'boolean' ? (l[s.key] ? 'yes' : '') :
                                                                  l[s.key]}</td>`)
                          .join('')}
    <td>${(l.memory / 1e9).toFixed(1)}</td><td>${percent(l.bubble)}</td><td>${
                      seconds(l.step)}</td><td>${percent(l.mfu)}</td></tr>`)
              .join('');
  byId('table')
      .querySelectorAll('tbody tr')
      .forEach((row, i) => row.addEventListener('click', () => load(rows[i])));
}

const LEFT = 62, TOP = 20, HIGH = 400, RIGHT = 12,
      COLOURS = ['tp 1', 'tp 2, 3', 'tp 4 to 7', 'tp 8', 'tp above 8'];
const colour = tp => tp < 2 ? 0 : tp < 4 ? 1 : tp < 8 ? 2 : tp === 8 ? 3 : 4;
let map;                                                   // the axes of memory and time: {x, y}
function axis(values, from, to) {                          // logarithmic
  const lo = Math.min(...values) / 1.1, hi = Math.max(...values) * 1.1;
  const of = v => from + Math.log(v / lo) / Math.log(hi / lo) * (to - from), ticks = [];
  for (let d = 10 ** Math.floor(Math.log10(lo)); d <= hi; d *= 10)
    for (const n of [1, 2, 5]) if (d * n >= lo && d * n <= hi) ticks.push(d * n);
  return { of, ticks };
}
function draw_all() {
  map = undefined;
  byId('layouts').style.display = byId('layouts-key').style.display =
      byId('pointed').style.display = plans?.layouts.length ? '' : 'none';
  if (!plans?.layouts.length) return;
  const usable = usable_bytes(), all = plans.layouts;
  const x = axis([usable, ...all.map(l => l.memory)], LEFT, WIDTH - RIGHT),
        y = axis(all.map(l => l.step), TOP + HIGH, TOP);
  let svg = rect('ground', LEFT, TOP, WIDTH - RIGHT - LEFT, HIGH);
  for (const t of x.ticks)
    svg += `<path class="grid" d="M${x.of(t)} ${TOP}v${HIGH}"/>` +
        label(x.of(t), TOP + HIGH + 16, amount(t, BYTES, x => +x.toPrecision(3)), 'mid small');
  for (const t of y.ticks)
    svg += `<path class="grid" d="M${LEFT} ${y.of(t)}H${WIDTH - RIGHT}"/>` +
        label(LEFT - 6, y.of(t) + 4, `${+ t.toPrecision(3)} s`, 'end small');
  svg += rect('beyond', x.of(usable), TOP, WIDTH - RIGHT - x.of(usable), HIGH) +
      label(x.of(usable) + 5, TOP + 15, 'does not fit', 'small');
  const dots = COLOURS.map(() => new Set());
  for (const l of all)
    dots[colour(l.tp)].add(`M${x.of(l.memory).toFixed(0)} ${y.of(l.step).toFixed(0)}h0`);
  dots.forEach((d, i) => { svg += `<path class="dot t${i}" d="${[...d].join('')}"/>`; });
  const on = plans.front.map(i => all[i]);
  svg += `<path class="front" d="${
      on.map(
            (l, i) => `${i ? 'H' : 'M'}${x.of(l.memory).toFixed(1)}${i ? 'V' : ' '}${
                y.of(l.step).toFixed(1)}`)
          .join('')}"/>`;
  const now = said(C, C.planner_layout()).layout;
  if (now) svg += `<circle class="now" cx="${x.of(now.memory)}" cy="${y.of(now.step)}" r="7"/>`;
  svg += `<circle id="at" r="5" hidden/>` +
      label((LEFT + WIDTH) / 2, TOP + HIGH + 34, 'memory of the fullest rank', 'mid') +
      label(LEFT - 6, 11, 'a step', 'end small');
  put('layouts', svg, TOP + HIGH + 42);
  byId('layouts-key').innerHTML =
      COLOURS.map((name, i) => `<i><span class="round t${i}"></span>${name}</i>`).join(' ') +
      ' <i><span class="line"></span>Pareto front</i> ' +
      '<i><span class="round now"></span>the chosen layout</i>';
  map = { x, y };
}
function pointed(event) {                                  // the layout nearest to the pointer
  if (!map) return undefined;
  const box = byId('layouts').getBoundingClientRect(), scale = WIDTH / box.width;
  const px = (event.clientX - box.left) * scale, py = (event.clientY - box.top) * scale;
  const far = l => Math.hypot(map.x.of(l.memory) - px, map.y.of(l.step) - py);
  return plans.layouts.map(l => [far(l), l]).reduce((a, b) => b[0] < a[0] ? b : a)[1];
}
function point(event) {
  const l = pointed(event), dot = byId('at');
  if (!l) return;
  dot.removeAttribute('hidden');
  dot.setAttribute('cx', map.x.of(l.memory));
  dot.setAttribute('cy', map.y.of(l.step));
  byId('pointed').textContent = `${named(l)}: ${bytes(l.memory)}, ${seconds(l.step)}, MFU ${
      percent(l.mfu)}${l.fits ? '' : '; does not fit: ' + l.limit}`;
}

function draw() {
  Object.values(moves).forEach(move => move());
  draw_layout();
  draw_table();
  draw_all();
  write_address();
}

WebAssembly.compile(Uint8Array.from(atob(PLANNER_WASM), c => c.charCodeAt(0)))
    .then(async compiled => {
      module = compiled;
      C = (await WebAssembly.instantiate(module, { page: { progress() {} } })).exports;
      C._initialize?.();
      ({ settings, memory } = said(C, C.planner_settings()));
      for (const s of settings)
        byId(
            s.key                                                    ? 'layout-sliders' :
                s.names.length || ['gpus', 'batch'].includes(s.name) ? 'task-sliders' :
                                                                       'own-sliders')
            .append(control(s));
      byId('layouts').addEventListener('pointermove', point);
      byId('layouts').addEventListener('click', event => {
        const l = pointed(event);
        if (l) load(l);
      });
      window.addEventListener('hashchange', () => {
        read_address();
        search();
        draw();
      });
      read_address();
      byId('planner').hidden = false;
      search();
      draw();
    });
